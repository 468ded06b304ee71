"""What only containers show: the engine's own memory limit, pause, kill and disconnect. Needs Docker and the image."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.containers import Hosts, docker, left, leftovers, log, show, why_not

from .cases import HEARTBEAT_S
from .job import HOSTS, PROGRAMS
from .table import RECORDS, Record, recorded

pytestmark = [pytest.mark.chaos, pytest.mark.docker]

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
    (job.folder / "algo-2" / "inject").write_text("1 allocate")


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


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.id for fault in FAULTS])
def test_fault_of_a_container(fault: Fault, tmp_path: Path) -> None:
    if why := why_not():  # the one kind of row that may be missing: the table says so
        RECORDS[fault.id, "docker"] = Record(
            fault.id, fault.what, "docker", fault.bound_s, reason=f"cannot run here: {why}"
        )
        pytest.skip(why)
    with recorded(fault.id, fault.what, "docker", fault.bound_s) as record:
        environ = {"ALGORUN_HEARTBEAT_TIMEOUT_S": f"{HEARTBEAT_S:g}", "SAGEMAKER_BASE_DIR": "/opt/ml"}
        wishes = {"sagemaker_program": "training.py", "algorun_args": "light"}
        job = Hosts(tmp_path, HOSTS, environ=environ, hyperparameters=wishes)
        try:
            job.prepare()
            for host in HOSTS:
                (tmp_path / host / "code" / "training.py").write_text((PROGRAMS / "training.py").read_text())
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
