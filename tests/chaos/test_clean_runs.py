"""No false verdict: a busy machine with a slow network is no reason to end a job; and no line of output is torn."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from .job import PROGRAMS, Job, algorun, training
from .table import recorded

pytestmark = [pytest.mark.root, pytest.mark.slow]

RUNS = 100
TOGETHER = 8  # a run mostly waits for its slow network
LOAD_PER_CORE = 4
DELAY_S = 0.4  # each way: an answer takes 0.8 s
RUN_S = 120.0
LINES = 1_000_000
BUSY = "while True: pass"
MODES = ("light", "uneven")


@contextmanager
def load() -> Iterator[None]:
    """Busy processes, four for each core."""
    argv = [sys.executable, "-I", "-S", "-c", BUSY]
    busy = [subprocess.Popen(argv, stdin=subprocess.DEVNULL) for _ in range(LOAD_PER_CORE * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait(10)


def slow(job: Job) -> None:
    """The bridge becomes a long cable."""
    job.network.bad_cable(job.helper, str(DELAY_S))


def clean_run(base: Path, mode: str) -> str:
    """One run; returns what was wrong with it."""
    job = Job(base, "native", training(mode, "--seconds", "0.3"))
    try:
        slow(job)
        at = job.start()
        job.end(at + RUN_S)
        codes = [host.code for host in job.hosts.values()]
        lines = {host.closing_line for host in job.hosts.values()}
        left = job.leftovers()
        if codes != [0, 0] or lines != {"ok nnodes=2 world_size=4"} or left:
            return f"{codes} {lines} {left}"
    except AssertionError as error:
        return str(error)
    finally:
        job.close()
    shutil.rmtree(base)
    return ""


def test_a_busy_machine_with_a_slow_network_gives_no_false_verdict(folder: Path) -> None:
    what = f"{RUNS} clean runs, half of them with a rank that ends 2 s before the others, CPU load {LOAD_PER_CORE}x the cores, {2 * DELAY_S:g} s of network delay"
    with recorded("C1", what, "native") as record, load(), ThreadPoolExecutor(TOGETHER) as pool:
        started = time.monotonic()
        folders = [folder / f"clean-{number}" for number in range(RUNS)]
        wrong = [text for text in pool.map(clean_run, folders, itertools.cycle(MODES)) if text]
        record.seconds = (time.monotonic() - started) / RUNS
        record.verdict = f"{len(wrong)} false verdicts"
        assert not wrong, f"{len(wrong)} of {RUNS}: {wrong[0]}"


def test_no_line_of_two_loud_ranks_is_torn(folder: Path) -> None:
    with recorded("F24", f"{2 * LINES:,} lines from two ranks, cut anywhere", "native") as record:
        job = Job(folder / "F24", "native", algorun("run", str(PROGRAMS / "noisy.py"), str(LINES)), hosts=("algo-1",))
        try:
            at = job.start()
            record.seconds = job.end(at + 120) - at
            host = job.hosts["algo-1"]
            assert host.code == 0, job.show()
            text = host.text
            slowest = max(float(found) for found in re.findall(r"seconds ([\d.]+)", text))
            record.verdict = f"{2 * LINES / slowest:,.0f} lines/s"
            next_one = [0, 0]
            for line in text.splitlines():
                match = re.fullmatch(r"\[(\d) algo-1\] <(\d):(\d+):(x*)>", line)
                if match is None:
                    assert "<" not in line, f"torn: {line!r}"
                    continue
                rank, number = int(match[2]), int(match[3])
                assert (match[1], number, len(match[4])) == (match[2], next_one[rank], number % 7), f"wrong: {line!r}"
                next_one[rank] += 1
            assert next_one == [LINES, LINES]
            assert job.leftovers() == []
        finally:
            job.close()
        shutil.rmtree(folder / "F24")
