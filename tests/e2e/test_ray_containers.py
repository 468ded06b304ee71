"""The engine `ray` in containers that outlive the job: versions, groups, memory, shared memory, and what is left. `make test PART=ray`"""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from containers import IMAGE, docker
from sleeping_hosts import End, SleepingHosts, sleeping

from tests.conftest import needs_ray

pytestmark = [pytest.mark.docker, needs_ray]

RAY, OTHER = "2.60.0", "2.59.0"
DOCKERFILE = f"FROM {IMAGE}\nCOPY *.whl /tmp/\nRUN pip install --no-index --find-links /tmp ray && rm /tmp/*.whl\n"
DOWNLOAD_S = 300
LEADER, FOLLOWER = "algo-1", "algo-2"
LEAN = {"ALGORUN_RAY_OBJECT_STORE_MB": "100", "RAY_enable_worker_prestart": "0", "ALGORUN_SLOTS": "1"}
SHM = {"": ("--shm-size", "256m")}
Make = Callable[..., SleepingHosts]


def download(folder: Path, *what: str) -> None:
    """Wheels for the Python of the image."""
    python = docker(
        "run", "--rm", "--network", "none", "--entrypoint", "python3", IMAGE,
        *("-c", "import sys; print('%d.%d' % sys.version_info[:2])"),
    )  # fmt: skip
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), "--only-binary", ":all:"]
    done = subprocess.run(
        [*pip, "--python-version", python, *what], capture_output=True, text=True, timeout=DOWNLOAD_S, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"pip cannot have {what[-1]} here: {done.stderr.strip()[-200:]}")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The image with Ray."""
    folder = tmp_path_factory.mktemp("ray")
    download(folder, f"ray=={RAY}")
    (folder / "Dockerfile").write_text(DOCKERFILE)
    name = f"algorun-test-ray:{uuid.uuid4().hex[:10]}"
    docker("build", "--quiet", "--network", "none", "--tag", name, str(folder), limit_s=600)
    yield name
    docker("rmi", "--force", name)


@pytest.fixture
def made(image: str, tmp_path: Path) -> Iterator[Make]:
    """Makes the two hosts of a test."""
    with ExitStack() as stack:

        def make(**more: object) -> SleepingHosts:
            return stack.enter_context(sleeping(SleepingHosts(tmp_path, image, **{"options": SHM, **more})))  # type: ignore[arg-type]

        yield make


def run(hosts: SleepingHosts, mode: str, **environ: str) -> dict[str, End]:
    hosts.launch(mode, **{**LEAN, **environ})
    return hosts.end()


def runs(hosts: SleepingHosts, name: str, program: str) -> bool:
    return any(program in each for each in hosts.state(name)["processes"])


def show(ends: dict[str, End]) -> str:
    return "\n".join(f"--- {name}: exit {end.code}\n{end.log[-4000:]}" for name, end in ends.items())


def refused(ends: dict[str, End], says: str) -> None:
    """Both hosts leave with 64 and the same words, and no driver has run."""
    assert [end.code for end in ends.values()] == [64, 64], show(ends)
    (failure,) = {end.failure for end in ends.values()}
    assert failure.startswith(says), failure
    assert "the driver runs" not in ends[LEADER].log


@pytest.mark.slow
def test_two_versions_of_ray_are_refused_with_both_hosts(made: Make, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    download(wheels, "--no-deps", f"ray=={OTHER}")
    hosts = made(options={**SHM, FOLLOWER: ("--volume", f"{wheels}:/wheels:ro")})
    hosts.inside(FOLLOWER, "sh", "-c", "pip install --quiet --no-index --no-deps /wheels/*.whl")
    before = hosts.states()
    refused(
        run(hosts, "spread"),
        f"mismatch: {FOLLOWER}, exit 64: Ray version differs: {RAY} on {LEADER}, {OTHER} on {FOLLOWER}",
    )
    assert hosts.states() == before


@pytest.mark.slow
@pytest.mark.parametrize("without", [LEADER, FOLLOWER])
def test_a_host_without_ray_is_named(made: Make, without: str) -> None:
    hosts = made(images={without: IMAGE})
    before = hosts.states()
    refused(
        run(hosts, "spread"),
        f"configuration: {without}, exit 64: engine ray: Ray is neither beside the Python interpreter nor on PATH; "
        "allowed: Ray 2; fix: add ray to requirements.txt beside the program, or install it in the image",
    )
    assert hosts.states() == before


@pytest.mark.slow
def test_an_object_store_that_does_not_fit_one_host_is_refused(made: Make) -> None:
    hosts = made(options={LEADER: ("--shm-size", "1g"), FOLLOWER: ("--shm-size", "256m")})
    before = hosts.states()
    refused(
        run(hosts, "spread", ALGORUN_RAY_OBJECT_STORE_MB="600"),
        f"configuration: {FOLLOWER}, exit 64: ALGORUN_RAY_OBJECT_STORE_MB: 600 MiB for Ray's object store is more than the "
        "256 MiB free in /dev/shm; allowed: 75 MiB to 256 MiB; fix: a smaller value, or docker run --shm-size",
    )
    assert hosts.states() == before


def test_a_task_lands_on_the_host_of_its_instance_group_and_nothing_is_left(made: Make) -> None:
    hosts = made(groups={LEADER: "trainers", FOLLOWER: "samplers"})
    before = hosts.states()
    ends = run(hosts, "groups")
    assert [end.code for end in ends.values()] == [0, 0], show(ends)
    assert f"trainers on {{'{LEADER}'}}" in ends[LEADER].log
    assert f"samplers on {{'{FOLLOWER}'}}" in ends[LEADER].log
    assert hosts.states() == before


@pytest.mark.parametrize("how", ["gate", pytest.param("stop", marks=pytest.mark.slow)])
def test_the_head_starts_while_a_host_is_missing_and_ends_with_the_gate(made: Make, how: str) -> None:
    hosts = made()
    before = hosts.states()
    hosts.launch("spread", LEADER, **LEAN, ALGORUN_GATE_S="20" if how == "gate" else "120")
    deadline = time.monotonic() + 15
    while not runs(hosts, LEADER, "gcs_server") and time.monotonic() < deadline:
        time.sleep(0.2)
    assert runs(hosts, LEADER, "gcs_server")
    if how == "stop":
        hosts.signal(LEADER, 15)
    (end,) = hosts.end().values()
    assert end.code == (65 if how == "gate" else 0), end.log
    assert end.failure.startswith(f"gate: {LEADER}, exit 65: hosts missing after 20 s: {FOLLOWER}") == (how == "gate")
    assert "the driver runs" not in end.log
    assert hosts.states() == before


@pytest.mark.slow
def test_a_head_that_does_not_start_ends_the_job_although_a_host_is_missing(made: Make) -> None:
    hosts = made()
    hosts.inside(LEADER, "sh", "-c", "printf '#!/bin/sh\\necho no port left >&2; exit 3\\n' > $(which ray)")
    hosts.launch("spread", LEADER, **LEAN, ALGORUN_GATE_S="120")
    (end,) = hosts.end(60).values()
    assert end.code == 66, end.log
    assert end.failure.startswith(f"node: {LEADER}, exit 66: ray start ended with 3: no port left")


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "code"), [("raises", 1), ("stop", 0), ("kill", 66)])
def test_nothing_is_left_of_a_job_that_ends_early(made: Make, mode: str, code: int) -> None:
    """Neither a process nor a listener nor shared memory: an exception, a stop, a supervisor that is killed."""
    hosts = made()
    before = hosts.states()
    hosts.launch("raises" if mode == "raises" else "wait", **LEAN)
    if mode != "raises":
        hosts.wait_for("waiting")
        assert runs(hosts, FOLLOWER, "raylet")
        assert hosts.state(FOLLOWER)["shared memory"] != before[FOLLOWER]["shared memory"]
        hosts.signal(FOLLOWER, 15 if mode == "stop" else 9)
    ends = hosts.end()
    assert ends[LEADER].code == code, show(ends)
    assert ("saved with ['algo-1', 'algo-2']" in ends[LEADER].log) == (mode == "stop")
    assert hosts.states() == before


@pytest.mark.slow
def test_a_worker_that_the_kernel_kills_for_memory_on_a_follower_is_named_on_all_hosts(made: Make) -> None:
    """Ray's own monitor is off: it is too late if a worker takes memory fast."""
    hosts = made(options={**SHM, FOLLOWER: ("--memory", "1500m", "--memory-swap", "1500m")})
    ends = run(hosts, "memory", RAY_memory_monitor_refresh_ms="0")
    assert [end.code for end in ends.values()] == [1, 1], show(ends)
    (failure,) = {end.failure for end in ends.values()}
    assert failure.startswith(f"exception: rank 0 on {LEADER}, exit 1, attempt 1: ray.exceptions."), failure
    hint = failure.splitlines()[-1]
    assert hint.startswith(
        f"hint: out of memory on {FOLLOWER}: the kernel killed 1 process (peak 1.5 GiB of a limit of 1.5 GiB)"
    )


@pytest.mark.slow
def test_a_cluster_of_the_user_s_own_is_left_alone(made: Make) -> None:
    """Their head has Ray's usual port, and their driver would find it."""
    hosts = made()
    hosts.inside(
        LEADER, "ray", "start", "--head", "--num-cpus=1", "--object-store-memory=80000000", "--include-dashboard=false"
    )
    before = hosts.states()
    ends = run(hosts, "spread")
    assert [end.code for end in ends.values()] == [0, 0], show(ends)
    assert "nodes ['algo-1', 'algo-2']" in ends[LEADER].log
    after = hosts.states()
    assert after[LEADER]["processes"] == before[LEADER]["processes"], "their cluster still runs"
    assert after == before


@pytest.mark.slow
def test_a_driver_that_never_connects_is_warned_of(made: Make) -> None:
    hosts = made()
    before = hosts.states()
    ends = run(hosts, "alone")
    assert [end.code for end in ends.values()] == [0, 0], show(ends)
    assert "computed alone" in ends[LEADER].log
    assert ends[LEADER].log.count("warning: the driver has not connected to the job's Ray cluster") == 1, show(ends)
    assert hosts.states() == before
