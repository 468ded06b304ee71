"""Reads `host_figures-HOST.jsonl`: how busy each host was, as its launcher has measured it (docs/time.md).

The files come from the job and may be cut short or damaged: a line that cannot be read is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from algorun.common.codec import loads
from algorun.common.json_values import known, rows
from algorun_report.run_report import Series, Traffic, Utilization
from algorun_report.thinning import Samples

from .json_files import moderate
from .log_files import ResultFolder, natural, shown

FILES = "host_figures-*.jsonl"
FORMAT = 1
LONGEST = 256 * 1024  # bytes of a line
MOST_SAMPLES = 256_000  # in a chart, of all hosts together: 4,000 of each of the 64 that it draws
FEWEST_SAMPLES = 256  # of a host
MB = 1e6
KINDS = ("CPU", "memory", "GPU", "GPU memory", "disk")  # in the order of the page
RATES = {  # charts of bytes per second: the key of each series, and its word
    "network": {"network_in": "in", "network_out": "out"},
    "disk traffic": {"disk_read": "read", "disk_write": "written"},
}


@dataclass(frozen=True, slots=True)
class MeasuredHosts:
    """What the files tell: percents of the whole host, bytes that moved, and what is left out."""

    utilization: tuple[Utilization, ...] = ()
    traffic: tuple[Traffic, ...] = ()
    unreadable: tuple[str, ...] = ()


def read_host_figures(folders: Sequence[ResultFolder], begin: float | None) -> MeasuredHosts:
    """What the files of all hosts tell; nothing without a file. `begin`: that of the job, in seconds since 1970."""
    paths = sorted((path for each in folders for path in each.path.glob(FILES)), key=lambda path: natural(path.name))
    most = max(FEWEST_SAMPLES, MOST_SAMPLES // max(1, len(paths))) // 2
    found: defaultdict[tuple[str, str], Samples] = defaultdict(lambda: Samples(most))  # by chart and series
    unreadable = []
    for path in paths:
        damaged = 0
        try:
            for values in _lines(path):
                damaged += values is None or not _take(found, values)
        except OSError as error:
            unreadable.append(f"{path.name} is left out: {error.strerror}.")
        if damaged:
            unreadable.append(f"{path.name}: {damaged} lines that cannot be read are left out.")
    if begin is None:
        begin = min((each.times[0] for each in found.values()), default=0.0)

    def series(chart: str) -> tuple[Series, ...]:
        labels = sorted((label for name, label in found if name == chart), key=natural)
        return tuple(_series(label, found[chart, label], begin) for label in labels)

    kinds = ((kind, series(kind)) for kind in KINDS)
    rates = ((rate, series(rate)) for rate in RATES)
    return MeasuredHosts(
        tuple(Utilization(name, lines) for name, lines in kinds if lines),
        tuple(Traffic(name, lines) for name, lines in rates if lines),
        tuple(unreadable),
    )


def _series(label: str, points: Samples, begin: float) -> Series:
    order = sorted(range(len(points.times)), key=points.times.__getitem__)  # a clock may have been set back
    return Series(label, [round(points.times[n] - begin, 3) for n in order], [points.values[n] for n in order])


def _lines(path: Path) -> Iterator[Mapping[str, object] | None]:
    """The objects of a file; None for a line that is none."""
    with open(path, "rb") as file:
        while line := file.readline(LONGEST):
            try:
                values = loads(line)
            except ValueError:
                values = None
            yield values if isinstance(values, dict) and values.get("format") == FORMAT else None


def _take(found: defaultdict[tuple[str, str], Samples], values: Mapping[str, object]) -> bool:
    """Adds the figures of a line. False if it has no time or no host."""
    time, host = _number(values.get("time")), values.get("host")
    if time is None or not isinstance(host, str) or not host:
        return False
    host = shown(host)
    percents = {
        "CPU": _number(values.get("cpu")),
        "memory": _share(values, "memory_bytes", "memory_limit_bytes"),
        "GPU": _mean([_number(each.get("utilization")) for each in _objects(values, "gpus")]),
        "GPU memory": _mean([_share(each, "memory_bytes", "memory_size_bytes") for each in _objects(values, "gpus")]),
        "disk": max((used for each in _objects(values, "folders") if (used := _used(each)) is not None), default=None),
    }
    for kind, share in percents.items():
        if share is not None:
            found[kind, host].add(time, 100 * min(1.0, max(0.0, share)))
    for chart, keys in RATES.items():
        for key, word in keys.items():
            rate = _number(values.get(key))
            if rate is not None:
                found[chart, f"{host} {word}"].add(time, round(rate / MB, 3))
    return True


def _objects(values: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    return [each for each in known(rows, values.get(key), []) if isinstance(each, dict)]


def _used(folder: Mapping[str, object]) -> float | None:
    free = _share(folder, "free_bytes", "size_bytes")
    return None if free is None else 1 - free


def _share(values: Mapping[str, object], part: str, whole: str) -> float | None:
    some, most = _number(values.get(part)), _number(values.get(whole))
    return some / most if some is not None and most else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return sum(known) / len(known) if known else None


def _number(value: object) -> float | None:
    return known(moderate, value, None)
