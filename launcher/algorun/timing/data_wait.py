"""Why ranks wait for batches, and what helps: judged by how busy their hosts are meanwhile. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .host_load import HostLoad

BUSY = 0.85  # of the cores: with more of them at work, more workers find none
WORKS = 0.5  # of a worker's time on a core: with less, it waits for its data
STREAM = 5e6  # bytes per second: with less, neither disk nor network is what workers wait for
DOCS = "docs/time.md#waiting-for-batches"


def mean_load(loads: Sequence[HostLoad]) -> HostLoad:
    """Several reports of training, of one host or of many, as one: means weighted by their seconds, of the values known.

    `ranks` and `cores` are means as well. Raises ValueError without any report.
    """
    if not loads:
        raise ValueError("no reports")

    def mean(name: str) -> float | None:
        known = [(value, each.seconds) for each in loads if (value := getattr(each, name)) is not None]
        whole = math.fsum(seconds for _, seconds in known)
        return math.fsum(value * seconds for value, seconds in known) / whole if whole > 0 else None

    cores = mean("cores")
    workers = [each.workers for each in loads if each.workers is not None]
    return HostLoad(
        training=True,
        seconds=math.fsum(each.seconds for each in loads),
        ranks=round(mean("ranks") or 0),
        data=mean("data"),
        cpu=mean("cpu"),
        cores=None if cores is None else round(cores),
        disk_read=mean("disk_read"),
        network_in=mean("network_in"),
        workers=min(workers, default=None),
    )


def verdict(load: HostLoad, where: str = "") -> str:
    """The line about ranks that wait for batches: for how much of their time, what was measured, and the fix.

    `where` names hosts (" of algo-2").
    """
    head = f"data: ranks{where} wait {load.data or 0:.0%} of the time for batches"
    if load.cpu is None or load.cores is None:
        return f"{head}: more workers if CPUs are free; see {DOCS}"
    cpu = f"the CPUs are {load.cpu:.0%} busy"
    if load.cpu >= BUSY:
        return f"{head}, and {cpu}: smaller images, or files that are decoded already; tar files if there are many small ones"
    streams = {"disks read": load.disk_read or 0.0, "network brings": load.network_in or 0.0}
    source = max(streams, key=lambda name: streams[name])
    if load.workers and load.cpu * load.cores < WORKS * load.workers * load.ranks and streams[source] >= STREAM:
        fix = (
            "tar files, or FastFile in place of File"
            if source == "disks read"
            else "a local copy (input mode File), tar files"
        )
        return f"{head}; {cpu}, {source} {streams[source] / 1e6:.0f} MB/s: {fix}"
    more = _more_workers(load)
    if load.workers == 0:
        return f"{head}; {cpu}, and the DataLoader has no workers: num_workers={more}"
    now = "" if load.workers is None else f", not {load.workers}"
    return f"{head}; {cpu}: {more} workers for each rank{now} (--workers; num_workers of a DataLoader)"


def _more_workers(load: HostLoad) -> int:
    """The workers of a rank that would use the cores that are free now; at least one more than it has.

    Without workers the rank's own process makes the batches: the first worker only takes its place.
    """
    free = round((load.cores or 1) * (1 - (load.cpu or 0.0)) / max(1, load.ranks))
    return 1 + free if load.workers == 0 else (load.workers or 0) + max(1, free)
