"""Runs tests many times, on a machine that holds processes up: `python tests/again.py --times 20 --freeze PATH::TEST`.

A test that depends on chance fails on a busy machine. `--freeze` stands for that machine at no cost of CPU: it stops
processes of the tests at any moment, each for a part of a second.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARKER = "ALGORUNS_AGAIN"  # no variable that clean_environ removes
LOOK_S = 0.05  # between two looks at the processes


class Freezer(threading.Thread):
    """Stops processes that carry the marker, `share` of them at any moment, each for up to `longest_s` seconds."""

    def __init__(self, marker: str, share: float, longest_s: float, seed: int) -> None:
        super().__init__(daemon=True)
        self.marker, self.share, self.longest_s = f"{MARKER}={marker}".encode(), share, longest_s
        self.random = random.Random(seed)
        self.carries: dict[int, bool] = {}
        self.until: dict[int, float] = {}
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(LOOK_S):
            self._thaw(time.monotonic())
            self._freeze(time.monotonic())
        self._thaw(float("inf"))

    def _thaw(self, now: float) -> None:
        for pid in [pid for pid, until in self.until.items() if until <= now]:
            del self.until[pid]
            _signal(pid, signal.SIGCONT)

    def _freeze(self, now: float) -> None:
        pids = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
        self.carries = {pid: self.carries[pid] if pid in self.carries else self._marked(pid) for pid in pids}
        # A process that is not stopped is stopped so often that this share of its time is spent so.
        chance = LOOK_S * self.share / (1 - self.share) / (self.longest_s / 2)
        for pid in pids:
            if self.carries[pid] and pid not in self.until and self.random.random() < chance and _runs(pid):
                self.until[pid] = now + self.random.uniform(0, self.longest_s)
                _signal(pid, signal.SIGSTOP)

    def _marked(self, pid: int) -> bool:
        try:
            return self.marker in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False


def _runs(pid: int) -> bool:
    """Whether this process is neither dead nor stopped by somebody else."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "RSD"
    except OSError:
        return False


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:  # it has ended
        pass


def _copy(number: int, options: argparse.Namespace, folder: Path, tests: list[str]) -> bool:
    """One run of the tests; True when all of them passed."""
    log, freezer = folder / f"{number}.txt", None
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--basetemp={folder / str(number)}",
        *tests,
    ]
    with open(log, "wb") as out:
        process = subprocess.Popen(
            argv, cwd=ROOT, env=os.environ | {MARKER: f"{os.getpid()}-{number}"}, stdout=out, stderr=out,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if options.freeze:
            freezer = Freezer(f"{os.getpid()}-{number}", options.share, options.longest_s, options.seed + number)
            freezer.start()
        code = process.wait()
        if freezer:
            freezer.over.set()
            freezer.join()
    lines = log.read_text(errors="replace").splitlines()
    for line in lines:
        if line.startswith(("FAILED", "ERROR")):
            print(f"{number}: {line}", flush=True)
    print(f"{number}: {lines[-1] if lines else ''} (exit {code}; {log})", flush=True)
    return code == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10, help="runs (10)")
    parser.add_argument("--beside", type=int, default=1, help="runs beside each other (1)")
    parser.add_argument("--freeze", action="store_true", help="stop the tests' processes now and then")
    parser.add_argument("--share", type=float, default=0.3, help="how much of its time a process is stopped (0.3)")
    parser.add_argument("--longest-s", type=float, default=0.6, help="the longest stop, in seconds (0.6)")
    parser.add_argument("--seed", type=int, default=0, help="of the first run's stops (0)")
    options, tests = parser.parse_known_args()
    folder = Path(tempfile.mkdtemp(prefix="again-"))
    waiting, green = list(range(options.times)), []

    def worker() -> None:
        while waiting:
            green.append(_copy(waiting.pop(0), options, folder, tests))

    workers = [threading.Thread(target=worker) for _ in range(options.beside)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    print(f"{sum(green)} of {len(green)} runs passed; their output is in {folder}")
    return 0 if all(green) else 1


if __name__ == "__main__":
    sys.exit(main())
