"""How busy the hosts of a job on this machine are: CPU, memory and disk, measured from /proc while they run.

The figures have CloudWatch's names and units. Memory is what a host's processes have for themselves, without the pages
of files and libraries that they share.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

EVERY_S = 1.0
SAMPLES = 1000  # of the first seconds; afterwards they come more rarely, so that a day has some 5,000
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What one process has used."""

    parent: int
    cpu_s: float  # since it was started
    memory: int  # bytes of its own


class HostMeter:
    """Measures one host between two calls. `first`: its first process."""

    def __init__(self, tree: Path, machine_bytes: int) -> None:
        self._tree, self._machine_bytes = tree, machine_bytes
        self._last: dict[int, float] = {}
        self._time: float | None = None

    def sample(self, first: int, processes: Mapping[int, ProcessUse], now: float) -> dict[str, float]:
        """The figures since the last call; the first call has no CPU time to compare with. `now`: seconds, monotonic."""
        own = {pid: processes[pid] for pid in descendants(first, processes)}
        used = sum(max(0.0, each.cpu_s - self._last.get(pid, 0.0)) for pid, each in own.items())
        figures: dict[str, float] = {}
        if self._time is not None and now > self._time:
            figures["CPUUtilization"] = round(100 * used / (now - self._time), 2)
        self._last, self._time = {pid: each.cpu_s for pid, each in own.items()}, now
        figures["MemoryUtilization"] = round(100 * sum(each.memory for each in own.values()) / self._machine_bytes, 2)
        with contextlib.suppress(OSError):
            disk = shutil.disk_usage(self._tree)
            figures["DiskUtilization"] = round(100 * disk.used / disk.total, 2)
        return figures


class Sampling:
    """A thread that writes samples of all hosts, one JSON object a line. Use it as a context manager.

    `hosts`: the first process of each host that runs. `streams`: the file of each host.
    """

    def __init__(
        self, hosts: Callable[[], Mapping[str, int]], trees: Mapping[str, Path], streams: Mapping[str, Path]
    ) -> None:
        self._hosts, self._streams = hosts, streams
        machine_bytes = PAGE * os.sysconf("SC_PHYS_PAGES")
        self._meters = {host: HostMeter(tree, machine_bytes) for host, tree in trees.items()}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sampling:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        with contextlib.suppress(OSError):  # a full disk ends the samples, not the job
            self._sample()
            while not self._end.wait(max(EVERY_S, (time.monotonic() - began) / SAMPLES)):
                self._sample()

    def _sample(self) -> None:
        running = self._hosts()
        if not running:
            return
        processes = dict(all_processes())
        for host, first in running.items():
            figures = self._meters[host].sample(first, processes, time.monotonic())
            path = self._streams[host]
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a", encoding="ascii") as file:
                file.write(json.dumps({"time": round(time.time(), 3), **figures}) + "\n")


def descendants(first: int, processes: Mapping[int, ProcessUse]) -> set[int]:
    """A process and all that it has started, directly or not, of those that run."""
    children: dict[int, list[int]] = {}
    for pid, each in processes.items():
        children.setdefault(each.parent, []).append(pid)
    found: set[int] = set()
    waiting = [first] if first in processes else []
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, ())
    return found


def all_processes() -> Iterator[tuple[int, ProcessUse]]:
    """Every process that this machine shows, with its number."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            stat = Path("/proc", name, "stat").read_text(encoding="ascii", errors="replace")
            _, resident, shared = Path("/proc", name, "statm").read_text(encoding="ascii").split()[:3]
        except (OSError, ValueError):  # it has ended
            continue
        values = stat.rpartition(")")[2].split()  # the name before may hold spaces
        cpu_s = (int(values[11]) + int(values[12])) / TICKS  # utime and stime: proc(5), fields 14 and 15
        yield int(name), ProcessUse(int(values[1]), cpu_s, (int(resident) - int(shared)) * PAGE)
