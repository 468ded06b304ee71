"""`metrics.json`: how busy the hosts of a job were, as CloudWatch counts it. `algorun report` reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from algorun_client.aws.host_figures import HostMetric
from algorun_client.aws.job_state import InstanceGroups
from algorun_client.common import instance_units

from .job_facts import write_json

FILE = "metrics.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class HostUnits:
    """What CloudWatch counts 100 % for, of one host. None: unknown."""

    cores: int | None
    gpus: int | None


def units(hosts: InstanceGroups) -> dict[str, HostUnits]:
    """The units of each host by its name. The hosts of the first instance group come first."""
    types = [instance for instance, count in hosts.groups for _ in range(count)]
    return {
        f"algo-{number}": HostUnits(instance_units.cores(instance), instance_units.gpus(instance))
        for number, instance in enumerate(types, 1)
    }


def write_metrics(figures: Sequence[HostMetric], of_hosts: Mapping[str, HostUnits], period_s: int, folder: Path) -> int:
    """Writes `metrics.json` into the folder, aside and renamed. Returns the number of files: 0 without figures."""
    if not figures:
        return 0
    value = {
        "format": FORMAT,
        "period_s": period_s,
        "hosts": {host: asdict(each) for host, each in of_hosts.items()},
        "series": [
            {
                "metric": each.metric,
                "host": each.host,
                "times": [_short(time) for time in each.times],
                "values": [_short(value) for value in each.values],
            }
            for each in figures
        ],
    }
    write_json(value, folder / FILE, is_large=True)
    return 1


def _short(number: float) -> float:
    """Whole where it is whole: a long job has a million points."""
    return int(number) if number.is_integer() else round(number, 4)
