"""Runs one case of the fault table and holds what happened against it."""

from __future__ import annotations

import math
import re
import shutil
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .cases import Case
from .job import Job
from .table import Record, recorded

MARGIN_S = 80.0  # how much longer than the bound is waited, to know by how much it was missed
UNBOUND_S = 60.0
BESIDE = 7  # cases that run beside each other: all long saves begin together, and end on a quiet machine


def _scripts(job: Job) -> None:
    """Tarballs of code that differ from host to host, where a case asks for them."""
    for host in job.hosts.values():
        if "CHAOS_TAR" in host.setup.environ:
            script = host.base / "train.py"
            script.write_text(f"print('code of {host.name}')\n")
            with tarfile.open(host.ml / "source.tar.gz", "w:gz") as tar:
                tar.add(script, "train.py")


def judge(case: Case, job: Job) -> None:
    """AssertionError where something is not as the table says."""
    survivors = [job.hosts[name] for name in case.survivors]
    codes = [host.code for host in survivors]
    assert codes == [case.code] * len(codes), f"codes {codes} instead of {case.code}\n{job.show()}"
    texts = [host.failure for host in survivors]
    if not case.says:
        assert not any(texts), f"a failure of a job that ended well: {texts}"
    for text in texts:
        for pattern in case.says:
            assert re.search(pattern, text), f"{pattern!r} is not in output/failure: {text}"
        assert len(text) <= 1024, f"output/failure has {len(text)} characters"
    if case.same:
        assert len(set(texts)) == 1, f"hosts blame different things: {texts}"
    if case.check is not None:
        case.check(job)
    others = [host for host in job.hosts.values() if host.name not in case.survivors and host.process]
    for host in others:  # killed, or beside the point of this case
        host.cgroup.kill()
    left = [each for host in survivors for each in host.leftovers()]
    assert not left, f"left over: {left}"


def once(case: Case, engine: str, base: Path, record: Record) -> float:
    """One run, which must be as the table says; returns its seconds."""
    job = Job(
        base, engine, case.command, environ=case.environ, setups=case.setups, hyperparameters=case.hyperparameters
    )
    try:
        _scripts(job)
        at = job.fault_at = case.scenario(job)
        last = job.end(time.monotonic() + (case.bound_s or UNBOUND_S) + MARGIN_S, case.survivors)
        job.end_helpers()
        seconds = last - at if job.measured is None else job.measured
        survivor = job.hosts[case.survivors[0]]
        line = survivor.failure.splitlines()[0] if survivor.failure else survivor.closing_line
        record.verdict = f"{survivor.code} {line}"
        judge(case, job)
        if case.measure is not None:
            seconds = case.measure(job)
    finally:
        job.close()
    shutil.rmtree(base)  # only failures are worth the disk
    return seconds


def run(case: Case, engine: str, folder: Path, least: int = 1) -> None:
    """All runs of a case, and `least` of one that has several.

    Bounds are those of the 95th percentile, the slowest of fewer than 20 runs.
    """
    repeats = max(least, case.repeats) if case.repeats > 1 else 1
    what = f"{case.what}, {repeats} times" if repeats > 1 else case.what
    with recorded(case.id, what, engine, case.bound_s) as record:
        seconds: list[float] = []
        for number in range(repeats):
            seconds.append(once(case, engine, folder / f"{case.id}-{engine}-{number}", record))
            record.seconds = sorted(seconds)[math.ceil(0.95 * len(seconds)) - 1]


class Lane:
    """Cases that mostly wait run beside each other, so that the whole table takes minutes and not an hour."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(BESIDE)
        self._futures: dict[object, Future[Any]] = {}

    def add(self, key: object, function: Callable[..., Any], *arguments: object) -> None:
        self._futures[key] = self._pool.submit(function, *arguments)

    def result(self, key: object) -> Any:
        return self._futures[key].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
