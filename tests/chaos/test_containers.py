"""What only containers show: the engine's own memory limit, pause, kill and disconnect. Needs Docker and the image."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.e2e.containers import LABEL, Hosts, docker, left, leftovers, log, show, why_not

from .cases import HEARTBEAT_S
from .job import HOSTS, PROGRAMS
from .table import RECORDS, Record, recorded

pytestmark = [pytest.mark.root, pytest.mark.docker, pytest.mark.slow]

LIMIT_S = 90.0
MEMORY = "256m"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that Docker does to a container. `codes` by host; None where the host is not looked at."""

    id: str
    what: str
    bound_s: float
    do: Callable[[Hosts], None]
    codes: tuple[int | None, int | None]
    says: str


def oom(job: Hosts) -> None:
    container = job.container("algo-2")
    docker("update", "--memory", MEMORY, "--memory-swap", MEMORY, container)
    folder = job.folder / "algo-2"
    (folder / ".inject").write_text("1 allocate")
    os.replace(folder / ".inject", folder / "inject")


FAULTS = [
    Fault(id="D4", what=f"--memory {MEMORY}, a rank allocates past it", bound_s=5, do=oom, codes=(137, 137),
          says=r"rank 3 on algo-2, exit 137\b(?s:.*)(?i:memory)(?s:.*)\b256\b"),
    Fault(id="D7", what="docker kill of the leader", bound_s=5, do=lambda job: docker("kill", job.container("algo-1")),
          codes=(None, 66), says=r"^lost: algo-1, exit 66"),
    Fault(id="D8", what="docker pause of host 2", bound_s=HEARTBEAT_S + 5,
          do=lambda job: docker("pause", job.container("algo-2")), codes=(66, None), says=r"^lost: algo-2, exit 66"),
    Fault(id="D9", what="docker network disconnect of host 2", bound_s=HEARTBEAT_S + 5,
          do=lambda job: docker("network", "disconnect", job.run, job.container("algo-2")), codes=(66, 66),
          says=r"^lost: algo-[12], exit 66"),
]  # fmt: skip


def _skip_without_docker(id_: str, what: str, bound_s: float) -> None:
    if why := why_not():  # the one kind of row that may be missing: the table says so
        RECORDS[id_, "docker"] = Record(id_, what, "docker", bound_s, reason=f"cannot run here: {why}")
        pytest.skip(why)


def _hosts(folder: Path) -> Hosts:
    environ = {"ALGORUN_HEARTBEAT_TIMEOUT_S": f"{HEARTBEAT_S:g}", "SAGEMAKER_BASE_DIR": "/opt/ml"}
    job = Hosts(
        folder, HOSTS, environ=environ, hyperparameters={"sagemaker_program": "training.py", "algorun_args": "light"}
    )
    job.prepare()
    for host in HOSTS:
        (folder / host / "code" / "training.py").write_text((PROGRAMS / "training.py").read_text())
    return job


def test_two_images_of_equal_versions(tmp_path: Path) -> None:
    what, bound_s = "another image id on one host", 3
    _skip_without_docker("D19", what, bound_s)
    with recorded("D19", what, "docker", bound_s) as record:
        job = _hosts(tmp_path)
        other = tmp_path / "another-image"
        other.write_text("0123456789abcdef\n")
        try:
            docker("network", "create", "--label", f"{LABEL}={job.run}", job.run)
            job.start_one("algo-1")
            replace(job, limits=("--volume", f"{other}:/etc/algorun-image:ro")).start_one("algo-2")
            at = time.time()
            ends = job.end(LIMIT_S)
            record.seconds = max(end.finished for end in ends.values()) - at
            record.verdict = f"{ends['algo-1'].code} {(ends['algo-1'].failure or '').partition(chr(10))[0]}"
            assert [end.code for end in ends.values()] == [64, 64], show(HOSTS, ends)
            for end in ends.values():
                assert re.search(r"image differs: \S+ on algo-1, 0123456789abcdef on algo-2", end.failure or "")
        finally:
            job.close()
        assert leftovers(job.run) == []


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.id for fault in FAULTS])
def test_fault_of_a_container(fault: Fault, tmp_path: Path) -> None:
    _skip_without_docker(fault.id, fault.what, fault.bound_s)
    with recorded(fault.id, fault.what, "docker", fault.bound_s) as record:
        job = _hosts(tmp_path)
        try:
            job.start()
            job.wait_for(r"\bup \d", LIMIT_S)
            time.sleep(0.5)
            at = time.time()
            fault.do(job)
            looked_at = [host for host, code in zip(HOSTS, fault.codes, strict=True) if code is not None]
            ends = {host: left(job.container(host), tmp_path / host, LIMIT_S) for host in looked_at}
            record.seconds = max(end.finished for end in ends.values()) - at
            record.verdict = f"{ends[looked_at[0]].code} {(ends[looked_at[0]].failure or '').partition(chr(10))[0]}"
            assert [ends[host].code for host in looked_at] == [code for code in fault.codes if code is not None], show(
                HOSTS, ends
            )
            for end in ends.values():
                assert re.search(fault.says, end.failure or ""), end.failure
            if fault.id == "D8":
                docker("unpause", job.container("algo-2"))
                woken = left(job.container("algo-2"), tmp_path / "algo-2", LIMIT_S)
                assert woken.code == 66, log(job.container("algo-2"))
        finally:
            job.close()
        assert leftovers(job.run) == []
