"""`measure` on hosts of which one link is bad: it is named, and nothing else is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .job import PROGRAMS, Job, algorun

pytestmark = [pytest.mark.root]

HOSTS = ("algo-1", "algo-2", "algo-3", "algo-4")
BAD = ("algo-2", "algo-4")
SECONDS = 10
LIMIT_S = 120.0
LATE_S = 0.005
FACTOR = 4  # not 2, the default: these hosts share two cores, and a good link was 2.4 times slower twice


def slow(job: Job) -> None:
    job.network.limit_rate(*BAD, "20mbit")


def late(job: Job) -> None:
    job.network.side_road(*BAD, job.helper, str(LATE_S))


def losing(job: Job) -> None:
    job.network.side_road(*BAD, job.helper, "0.0001", "0.02")


def whole(_job: Job) -> None:
    pass


FAULTS: dict[str, Callable[[Job], None]] = {"slow": slow, "late": late, "losing": losing, "whole": whole}


@pytest.mark.slow(but=["slow"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_link_is_named_and_a_good_one_is_not(able: None, tmp_path: Path, fault: str) -> None:
    command = algorun("run", "measure", "--seconds", str(SECONDS), "--factor", str(FACTOR), "--strict", "True")
    job = Job(tmp_path, "native", command, environ={"ALGORUN_SLOTS": "1", "OMP_NUM_THREADS": "1"}, hosts=HOSTS)
    try:
        FAULTS[fault](job)
        job.start()
        job.end(time.monotonic() + LIMIT_S)
        text = job.hosts["algo-1"].text
        figures = json.loads((job.hosts["algo-1"].ml / "output/data/measure.json").read_text())
        named = {finding["what"] for finding in figures["findings"]}
        assert named == (set() if fault == "whole" else {" - ".join(BAD)}), text
        codes = {host.code for host in job.hosts.values()}
        assert codes == {0 if fault == "whole" else 69}, text
    finally:
        job.close()


@pytest.mark.slow
def test_a_job_that_asks_for_it_does_not_begin_on_hosts_with_a_bad_link(able: None, tmp_path: Path) -> None:
    command = algorun("run", str(PROGRAMS / "comes_and_goes.py"))
    environ = {"ALGORUN_SLOTS": "1", "OMP_NUM_THREADS": "1", "ALGORUN_PREFLIGHT": f"strict:{SECONDS}"}
    job = Job(tmp_path, "native", command, environ=environ, hosts=HOSTS)
    try:
        slow(job)
        job.start()
        job.end(time.monotonic() + LIMIT_S)
        assert {host.code for host in job.hosts.values()} == {69}, job.show()
        assert "error: ALGORUN_PREFLIGHT=strict: link algo-2 - algo-4 is " in job.hosts["algo-1"].closing_line
        assert not any("] up " in host.text for host in job.hosts.values()), "the program has begun"
    finally:
        job.close()
