"""The sshd that the MPI driver of the SageMaker SDK v3 starts: open between the hosts of a job, to nobody else."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import IMAGE, LABEL, docker, give_back, leftovers, opt_ml

pytestmark = pytest.mark.docker

JOB = ("algo-1", "algo-2")
STRANGER = "algo-3"  # on the same network, with the same image, but not among the job's hosts


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Three containers with a running sshd, by host name; all are gone afterwards."""
    run = f"algorun-test-{uuid.uuid4().hex[:10]}"
    made = {name: f"{run}-{name}" for name in (*JOB, STRANGER)}
    docker("network", "create", "--label", f"{LABEL}={run}", run)
    try:
        for name, container in made.items():
            root = opt_ml.write_host(tmp_path, name, JOB if name in JOB else (STRANGER,), {})
            docker(
                *("run", "--detach", "--init", "--name", container, "--hostname", name, "--label", f"{LABEL}={run}"),
                *("--network", run, "--network-alias", name, "--volume", f"{root}:/opt/ml"),
                *("--entrypoint", "bash", IMAGE, "-c", "/usr/sbin/sshd && sleep 300"),
            )
        yield made
    finally:
        docker("rm", "--force", *made.values(), ok=False)
        docker("network", "rm", run, ok=False)
        give_back(tmp_path)
        assert leftovers(run) == []


def ssh(container: str, host: str) -> subprocess.CompletedProcess[str]:
    """`ssh HOST hostname` with nobody there to answer a question."""
    argv = ["docker", "exec", container, "timeout", "20", "ssh", "-o", "BatchMode=yes", host, "hostname"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_ssh_works_between_the_hosts_of_a_job_and_for_nobody_else(machines: dict[str, str]) -> None:
    for source, target in (("algo-1", "algo-2"), ("algo-2", "algo-1")):
        deadline = time.monotonic() + 30
        while (done := ssh(machines[source], target)).returncode != 0 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert done.stdout.strip() == target, done.stderr
    deadline = time.monotonic() + 30
    while not docker("exec", machines[STRANGER], "cat", "/root/.ssh/id_ed25519.pub", ok=False):
        assert time.monotonic() < deadline, "the stranger has no key: it would prove nothing"
        time.sleep(0.2)
    refused = ssh(machines[STRANGER], "algo-1")
    assert refused.returncode == 255
    assert "Permission denied" in refused.stderr
    assert refused.stdout == ""


def test_every_container_has_keys_of_its_own(machines: dict[str, str]) -> None:
    for key in ("/root/.ssh/id_ed25519.pub", "/etc/ssh/ssh_host_ed25519_key.pub"):
        deadline = time.monotonic() + 30
        while True:
            keys = [docker("exec", container, "cat", key, ok=False).split()[:2] for container in machines.values()]
            if all(keys) or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        assert all(keys), key
        assert len({tuple(words) for words in keys}) == len(keys), key
