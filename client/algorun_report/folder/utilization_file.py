"""Reads `metrics.json`: how busy the hosts were, as CloudWatch counts it, in percent of the whole host."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from algorun_report.run_report import Series, Utilization, normalized

from .json_files import Fields, read_object
from .log_files import natural, shown

FILE = "metrics.json"
LARGEST = 256 << 20  # bytes: 64 hosts for a week have 50 MB
FORMAT = 1
# CloudWatch's metrics, the words for them, and what each counts 100 % for: cores, GPUs, or the whole host.
KINDS = {
    "CPUUtilization": ("CPU", "cores"),
    "MemoryUtilization": ("memory", ""),
    "GPUUtilization": ("GPU", "gpus"),
    "GPUMemoryUtilization": ("GPU memory", "gpus"),
    "DiskUtilization": ("disk", ""),
}
UNITS = {"cores": "cores", "gpus": "GPUs"}


@dataclass(frozen=True, slots=True)
class HostUse:
    """What the file tells. `unknown`: figures that are left out, because nobody knows what they count 100 % for."""

    utilization: tuple[Utilization, ...] = ()
    unknown: tuple[str, ...] = ()


def read_utilization(folder: Path, begin: float | None, fix: str) -> HostUse:
    """Nothing without the file. `begin`: that of the job, in seconds since 1970. Raises UserError if it is damaged."""
    file = read_object(folder / FILE, fix, LARGEST)
    if file is None:
        return HostUse()
    if file.number("format") != FORMAT:
        raise file.wrong(f"format is not {FORMAT}")
    hosts = file.table("hosts")
    found: defaultdict[str, list[Series]] = defaultdict(list)
    unknown: defaultdict[str, set[str]] = defaultdict(set)
    listed = sorted(file.tables("series"), key=lambda each: natural(each.text("host")))
    if begin is None:
        begin = min((min(each.numbers("times"), default=0.0) for each in listed), default=0.0)
    for each in listed:
        metric, host = each.text("metric"), each.text("host")
        times, values = each.numbers("times"), each.numbers("values")
        if len(times) != len(values) or times != sorted(times):
            raise each.wrong("times and values do not belong together")
        if metric not in KINDS or not times:
            continue
        unit = KINDS[metric][1]
        units = _units(hosts, host, unit)
        if units is None:
            unknown[UNITS[unit]].add(shown(host))
            continue
        found[metric].append(Series(shown(host), [time - begin for time in times], normalized(values, units)))
    return HostUse(
        tuple(Utilization(name, tuple(found[metric])) for metric, (name, _) in KINDS.items() if metric in found),
        tuple(
            f"The number of {unit} of {', '.join(sorted(names, key=natural))} is unknown, so figures of them are left out."
            for unit, names in unknown.items()
        ),
    )


def _units(hosts: Fields, host: str, unit: str) -> int | None:
    if not unit:
        return 1
    count = hosts.table(host).number(unit)
    return int(count) if count is not None and count >= 1 else None
