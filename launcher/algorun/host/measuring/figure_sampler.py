"""Measures this host while the ranks run: `python -I -m algorun.host.measuring.figure_sampler SETUP`, SETUP a `SamplerSetup` as JSON.

The supervisor runs it as a process of low priority, so that neither a slow disk nor a broken driver of GPUs can hold
the job up. It writes lines into the file of figures, and on stdout a line for each interval of EVERY_S and for each
warning ({"warning": text}). It ends on SIGTERM, after its last line, and when nobody reads its stdout any more.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from algorun.common import codec
from algorun.machine import host_counters, visible_gpus
from algorun.machine.host_counters import Counters
from algorun.machine.nvml import GpuReading, Nvml, NvmlError
from algorun.timing.host_figures import (
    EVERY_S,
    FolderFigures,
    GpuFigures,
    HostFigures,
    interval_s,
    to_line,
    together,
)

from .figure_setup import SamplerSetup

LOWEST = 19  # nice(2)
LARGEST = 32 * 1024 * 1024  # bytes of the file of figures; a week of a host with 16 GPUs has about 18 MiB


class GpuWatch:
    """A thread that reads the GPUs, because NVML may hang for ever. `newest` is None before its first answer."""

    def __init__(self, setup: SamplerSetup, warn: Callable[[str], None]) -> None:
        self._visible, self._silent_s, self._warn = setup.visible, setup.silent_s, warn
        self._newest: list[GpuReading] = []
        self._answered = time.monotonic()
        self._warned = False
        try:
            threading.Thread(target=self._run, daemon=True).start()
        except RuntimeError as error:
            self._say(str(error))

    def read(self) -> list[GpuReading]:
        """The GPUs as NVML has shown them last, none where it does not answer. Warns once."""
        if time.monotonic() - self._answered <= self._silent_s:
            return self._newest
        self._say(f"NVML has not answered for {self._silent_s:g} s")
        return []

    def _say(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            self._warn(f"no figures of the GPUs: {why}")

    def _run(self) -> None:
        try:
            nvml = Nvml()
            places = visible_gpus.places(self._visible, nvml.uuids())
            while True:
                self._newest, self._answered = nvml.read(places), time.monotonic()
                time.sleep(EVERY_S)
        except NvmlError as error:
            self._newest, self._answered = [], sys.float_info.max
            self._say(str(error))


class FigureFile:
    """The file of figures. What cannot be written is left out, with one warning."""

    def __init__(self, path: str, warn: Callable[[str], None]) -> None:
        self._path, self._warn = Path(path), warn
        self._warned = self._torn = False
        self._bytes = 0

    def write(self, line: str) -> None:
        """Appends a line."""
        data = line.encode()
        if self._bytes + len(data) > LARGEST:
            self._say(f"it has {LARGEST >> 20} MiB, and gets no more lines")
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "ab", buffering=0) as file:
                if self._torn:
                    data = b"\n" + data  # the rest of a line that a full disk has cut off
                written = file.write(data)
            self._bytes += written
            self._torn = written < len(data)
            if self._torn:
                self._say("the disk is full")
        except OSError as error:
            self._say(str(error.strerror))

    def _say(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            self._warn(f"the figures of this host are not all written: {self._path}: {why}")


class Sampler:
    """One process's work."""

    def __init__(self, setup: SamplerSetup) -> None:
        self._setup = setup
        self._lock = threading.Lock()
        self._file = FigureFile(setup.file, self._warn)
        self._gpus = GpuWatch(setup, self._warn) if setup.gpus else None
        self._waiting: list[HostFigures] = []  # intervals that are not in the file yet
        self._began = time.monotonic()
        self._wall = time.time() - self._began  # so that a clock that is set disturbs no order

    def run(self) -> None:
        """Measures until SIGTERM, which the caller has blocked."""
        before, at = host_counters.look(self._setup.interface), self._began
        due = at + EVERY_S
        while signal.sigtimedwait([signal.SIGTERM], max(0.0, due - time.monotonic())) is None:
            now, after = time.monotonic(), host_counters.look(self._setup.interface)
            self._take(self._measured(before, after, at, now))
            before, at = after, now
            due = max(due + EVERY_S, now)
        if self._waiting:
            self._file.write(to_line(together(self._waiting)))

    def _measured(self, before: Counters, after: Counters, began: float, now: float) -> HostFigures:
        readings = self._gpus.read() if self._gpus is not None else []
        disks = folders(self._setup.folders)
        return figures(self._setup, (before, after), (began, now), disks, readings, self._wall)

    def _take(self, sample: HostFigures) -> None:
        self._say(to_line(sample))
        self._waiting.append(sample)
        if sum(each.interval_s for each in self._waiting) >= interval_s(time.monotonic() - self._began) - EVERY_S / 2:
            self._file.write(to_line(together(self._waiting)))
            self._waiting.clear()

    def _warn(self, text: str) -> None:
        self._say(json.dumps({"warning": text}) + "\n")

    def _say(self, line: str) -> None:
        with self._lock:
            sys.stdout.write(line)
            sys.stdout.flush()


def figures(
    setup: SamplerSetup,
    counted: tuple[Counters, Counters],
    moments: tuple[float, float],
    disks: tuple[FolderFigures, ...],
    gpus: Sequence[GpuReading],
    wall: float,
) -> HostFigures:
    """The figures of the interval between two counts, each at its moment of the monotonic clock, which the wall clock is
    `wall` seconds ahead of."""
    (before, after), (began, now) = counted, moments
    span = max(now - began, 1e-9)

    def rate(old: int | None, new: int | None) -> float | None:
        return None if old is None or new is None or new < old else (new - old) / span

    cpu = None
    if before.cpu_s is not None and after.cpu_s is not None:
        cpu = min(1.0, max(0.0, (after.cpu_s - before.cpu_s) / span / after.cores))
    return HostFigures(
        time=now + wall,
        start_s=now - setup.begin,
        interval_s=span,
        host=setup.host,
        cpu=cpu,
        cores=max(1, round(after.cores)),
        memory_bytes=after.memory,
        memory_limit_bytes=after.memory_limit,
        network_in=rate(before.received, after.received),
        network_out=rate(before.sent, after.sent),
        disk_read=rate(before.read, after.read),
        disk_write=rate(before.written, after.written),
        folders=disks,
        gpus=tuple(GpuFigures(*(getattr(each, name) for name in GpuFigures.__slots__)) for each in gpus),
    )


def folders(paths: Sequence[str]) -> tuple[FolderFigures, ...]:
    """The room in these folders: of each file system once, under the first folder on it. Absent folders are left out."""
    found: dict[int, FolderFigures] = {}
    for path in paths:
        with contextlib.suppress(OSError):
            device, room = os.stat(path).st_dev, os.statvfs(path)
            if device not in found and room.f_blocks:
                found[device] = FolderFigures(path, room.f_frsize * room.f_bavail, room.f_frsize * room.f_blocks)
    return tuple(found.values())


def main() -> int:
    """Returns 0, also where the supervisor has ended before."""
    os.nice(LOWEST)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    setup: SamplerSetup = codec.from_json(SamplerSetup, json.loads(sys.argv[1]))
    with contextlib.suppress(BrokenPipeError):
        Sampler(setup).run()
    # A thread may hang in NVML, and nobody may read stdout: neither is waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
