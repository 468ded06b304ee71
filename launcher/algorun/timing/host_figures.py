"""How busy a host was in an interval, and the line of a file that says so. Pure. docs/time.md explains the file."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from algorun.common.codec import fields_of, from_json, loads
from algorun.common.fast_dataclasses import dataclass

FORMAT = 1  # of a line; another number if a name or a unit changes. New names alone do not change it
EVERY_S = 2.0  # shortest interval of a line
LINES = 1000  # of the first intervals; afterwards they grow, so that a week has some 7,000 lines


@dataclass(frozen=True, slots=True)
class FolderFigures:
    """The file system of a folder that the job writes to, at the end of the interval."""

    folder: str
    free_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """One GPU, means over the interval; None: NVML does not say.

    `utilization`: the share of the time, 0 to 1, in which at least one kernel ran. `throttled`: why its clock was lowered at
    some moment (machine/nvml.py has the names).
    """

    utilization: float | None = None
    memory_bytes: int | None = None
    memory_size_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostFigures:
    """What a host did in the `interval_s` seconds before `time` (seconds since 1970, by this host's clock at the start); None: not known.

    `start_s`: seconds from the start of the host's launcher. `cpu`: share of the host's cores, 0 to 1. `memory_bytes`: what
    the kernel cannot take back. Rates are bytes per second. `folders`: one for each file system.
    """

    time: float
    start_s: float
    interval_s: float
    host: str
    cpu: float | None = None
    cores: int | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    network_in: float | None = None
    network_out: float | None = None
    disk_read: float | None = None
    disk_write: float | None = None
    folders: tuple[FolderFigures, ...] = ()
    gpus: tuple[GpuFigures, ...] = ()


def to_line(figures: HostFigures) -> str:
    """One line of JSON with its newline. Values that are not known are left out."""
    return json.dumps({"format": FORMAT, **_known(fields_of(figures))}, separators=(",", ":")) + "\n"


def from_line(line: str | bytes) -> HostFigures:
    """The figures of a line that this version has written. Raises ValueError on any other."""
    values = loads(line)
    if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
        raise ValueError("not a line of figures")
    return from_json(HostFigures, values, "figures")


def _known(values: dict[str, object]) -> dict[str, object]:
    return {name: _rounded(value) for name, value in values.items() if value is not None}


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, list):
        return [_known(each) if isinstance(each, dict) else each for each in value]
    return value


def interval_s(elapsed_s: float) -> float:
    """How long the interval of the next line is, `elapsed_s` after the first one: the file stays small in long jobs."""
    return max(EVERY_S, elapsed_s / LINES)


def together(samples: Sequence[HostFigures]) -> HostFigures:
    """Successive intervals of one host as one. Raises ValueError without any.

    Each figure is its mean over the intervals that have it, weighted by their length. What is measured at a moment
    (memory, folders) is that of the last one; a GPU's clock was lowered if it was in any of them.
    """
    if not samples:
        raise ValueError("no samples")
    last = samples[-1]
    weights = [each.interval_s for each in samples]

    def mean(name: str) -> float | None:
        return _mean([(getattr(each, name), weight) for each, weight in zip(samples, weights, strict=True)])

    return HostFigures(
        time=last.time,
        start_s=last.start_s,
        interval_s=sum(weights),
        host=last.host,
        cpu=mean("cpu"),
        cores=last.cores,
        memory_bytes=last.memory_bytes,
        memory_limit_bytes=last.memory_limit_bytes,
        network_in=mean("network_in"),
        network_out=mean("network_out"),
        disk_read=mean("disk_read"),
        disk_write=mean("disk_write"),
        folders=last.folders,
        gpus=tuple(_gpu(samples, index) for index in range(len(last.gpus))),
    )


def _gpu(samples: Sequence[HostFigures], index: int) -> GpuFigures:
    """One GPU over all samples that have as many GPUs as the last one: the others may number them in another way."""
    count = len(samples[-1].gpus)
    found = [(each.gpus[index], each.interval_s) for each in samples if len(each.gpus) == count]
    last = found[-1][0]

    def mean(name: str) -> float | None:
        return _mean([(getattr(gpu, name), weight) for gpu, weight in found])

    return GpuFigures(
        utilization=mean("utilization"),
        memory_bytes=last.memory_bytes,
        memory_size_bytes=last.memory_size_bytes,
        power_w=mean("power_w"),
        temperature_c=mean("temperature_c"),
        throttled=tuple(sorted({reason for gpu, _ in found for reason in gpu.throttled})),
    )


def _mean(pairs: Sequence[tuple[float | None, float]]) -> float | None:
    known = [(value, weight) for value, weight in pairs if value is not None and weight > 0]
    whole = math.fsum(weight for _, weight in known)
    return math.fsum(value * weight for value, weight in known) / whole if whole > 0 else None
