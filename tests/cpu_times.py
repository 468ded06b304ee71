"""The option `--cpu-times FILE`: seconds of CPU and of waiting for each test, and the dearest tests and files.

A test's seconds are what its worker and the processes below it have computed meanwhile, also those that still run. Not
counted is a process that has left its parent (a daemon). The fixture that a test is the first to use counts as its own.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
SHOWN = 30


def children(pid: int) -> list[int]:
    """The live children of a process (proc(5), `children`)."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found.extend(map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()))
    except OSError:  # it has ended meanwhile
        pass
    return found


def used_s(pid: int) -> float:
    """Seconds of CPU of a process, of its ended children, and of all live processes below it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    # Fields 14 to 17 of proc(5): utime, stime, cutime, cstime. A name may have blanks and brackets.
    own = TICK_S * sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    return own + sum(map(used_s, children(pid)))


@dataclass(eq=False)
class Worker:
    """Measures where tests run: gives each report the seconds since the one before."""

    cpu_s: float = field(default_factory=lambda: used_s(os.getpid()))
    now_s: float = field(default_factory=time.monotonic)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        cpu_s, now_s = used_s(os.getpid()), time.monotonic()
        # xdist sends a report's attributes to the process that prints them.
        vars(report).update(cpu_s=max(cpu_s - self.cpu_s, 0.0), wall_s=now_s - self.now_s)
        self.cpu_s, self.now_s = cpu_s, now_s
        return report


@dataclass(eq=False)
class Table:
    """Adds a line to the file for each test when it has ended, and prints the dearest at the end."""

    path: Path
    cpu_s: Counter[str] = field(default_factory=Counter)
    wall_s: Counter[str] = field(default_factory=Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A worker that has died leaves a report without seconds.
        self.cpu_s[report.nodeid] += vars(report).get("cpu_s", 0.0)
        self.wall_s[report.nodeid] += vars(report).get("wall_s", 0.0)
        if report.when == "teardown":
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{self.cpu_s[report.nodeid]:.2f}\t{self.wall_s[report.nodeid]:.2f}\t{report.nodeid}\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        files: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        for by_file, by_test in zip(files, (self.cpu_s, self.wall_s), strict=True):
            for test, seconds in by_test.items():
                by_file[test.partition("::")[0]] += seconds
        terminalreporter.section(f"{self.cpu_s.total():.0f} s of CPU in {len(self.cpu_s)} tests; all in {self.path}")
        for title, cpu_s, wall_s in (("file", *files), ("test", self.cpu_s, self.wall_s)):
            terminalreporter.write_line(f"  CPU s  wall s  {title}")
            for name, seconds in cpu_s.most_common(SHOWN):
                terminalreporter.write_line(f"{seconds:7.1f} {wall_s[name]:7.1f}  {name}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cpu-times", type=Path, metavar="FILE", help="seconds of CPU of each test; the dearest are printed"
    )


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--cpu-times")
    if path is None:
        return
    worker = hasattr(config, "workerinput")
    if worker or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Worker())
    if not worker:
        config.pluginmanager.register(Table(path))
