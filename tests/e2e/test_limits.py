"""Hosts that run out of memory, shared memory or disk: the failure says of what, on every host."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from containers import Hosts, show

pytestmark = pytest.mark.docker

CHECKPOINTS = "/opt/ml/checkpoints"


@pytest.mark.parametrize(
    ("what", "limits", "code", "hint"),
    [
        ("memory", ("--memory", "300m"), 137,
         "out of memory: the kernel killed 1 process (peak 300 MiB of a limit of 300 MiB); use a smaller batch, fewer DataLoader "
         "workers, or a larger instance"),
        ("shm", ("--shm-size", "1m"), 135,
         "shared memory: /dev/shm has 0 MiB free of 1 MiB; docker run --shm-size 1g, or fewer DataLoader workers"),
        (CHECKPOINTS, ("--tmpfs", f"{CHECKPOINTS}:size=4m"), 1,
         f"disk full: {CHECKPOINTS} has 0 MiB free of 4 MiB; keep fewer checkpoints, or give the job a larger volume"),
    ],
)  # fmt: skip
def test_a_host_that_runs_out_says_of_what(
    what: str, limits: tuple[str, ...], code: int, hint: str, hosts: Callable[..., Hosts]
) -> None:
    job = hosts("algo-1", "algo-2", slots=2, limits=limits)
    job.prepare("runs_out.py")
    job.start("run", "/opt/ml/code/runs_out.py", what)
    ends = job.end()
    assert [end.code for end in ends.values()] == [code] * 2, show(job.names, ends)
    for end in ends.values():
        assert end.failure is not None
        lines = end.failure.splitlines()
        assert lines[0].split(":")[1].startswith(" rank 3 on algo-2, exit")
        assert lines[-1] == f"hint: {hint}"


def test_little_of_something_is_a_warning(hosts: Callable[..., Hosts]) -> None:
    job = hosts("algo-1", slots=2, limits=("--shm-size", "64m", "--tmpfs", f"{CHECKPOINTS}:size=4m"))
    job.prepare("hello.py")
    job.start("run", "/opt/ml/code/hello.py")
    end = job.end()["algo-1"]
    assert end.code == 0, end.log
    assert (
        end.log.count("algorun: warning: shared memory: /dev/shm has 64 MiB free; fix: docker run --shm-size 1g") == 1
    )
    assert end.log.count(f"algorun: warning: {CHECKPOINTS}: 4 MiB free of 4 MiB") == 1
