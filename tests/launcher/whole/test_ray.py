"""The engine `ray` on simulated hosts. All tests but the first need Ray: `make test PART=ray`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import RAY, clean_environ, needs_ray, ours

from .running import PROGRAMS, Running, simulate

DRIVER = PROGRAMS / "ray_driver.py"
BOUND_S = 5.0
# A machine of two cores takes seconds for each node. Ray's own workers before any task would take more.
LEAN = {"ALGORUN_RAY_OBJECT_STORE_MB": "100", "RAY_enable_worker_prestart": "0", "ALGORUN_START_S": "120"}


@pytest.fixture(autouse=True)
def no_segment_left():
    """Neither shared memory nor a session of Ray stays behind."""
    before = set(os.listdir("/dev/shm"))
    yield
    assert set(os.listdir("/dev/shm")) <= before
    assert not os.path.exists("/tmp/ray")


def run(mode, tmp_path, marker, layout="2x1", **environ):
    return simulate("ray", DRIVER, mode, folder=tmp_path, marker=marker, layout=layout, **{**LEAN, **environ})


def begin(tmp_path, marker, layout="2x1", **environ):
    job = Running("ray", DRIVER, "wait", folder=tmp_path, marker=marker, layout=layout, **{**LEAN, **environ})
    job.wait_for("waiting", 1, timeout=120)
    return job


def failures(folder: Path) -> set[str]:
    return {path.read_text() for path in folder.glob("algorun-simulate/*/output/failure")}


def listeners(marker):
    """The name of each process that listens, and where."""
    return [
        (process.name(), connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
        for process in ours(marker)
        for connection in process.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    ]


def processes(marker, word):
    return [each for each in ours(marker) if word in " ".join(each.cmdline())]


@pytest.mark.skipif(RAY, reason="for an environment without Ray")
def test_without_ray_one_error_says_what_to_install(tmp_path, nothing_left):
    job = run("spread", tmp_path, nothing_left)
    assert job.code == 64, job.text
    (text,) = failures(tmp_path)
    assert "exit 64: engine ray: Ray is neither beside the Python interpreter nor on PATH; allowed: Ray 2" in text
    assert "fix: add ray to requirements.txt" in text


@needs_ray
@pytest.mark.parametrize("hosts", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_tasks_and_actors_run_on_all_hosts(hosts, tmp_path, nothing_left):
    job = run("spread", tmp_path, nothing_left, layout=f"{hosts}x1", RAY_DEDUP_LOGS="0")
    assert job.code == 0, job.text
    names = [f"algo-{number}" for number in range(1, hosts + 1)]
    assert str(names) in job.out, "the driver sees every node by its host's name"
    assert f"places {[(name, f'127.0.0.{at}') for at, name in enumerate(names, 2)]}" in job.out
    assert f"sum {sum(number * number for number in range(20))}" in job.out
    assert "(Holder pid=" in job.out
    assert all(re.search(rf"\(Holder pid=\d+, {name}\) spoken on {name}", job.out) for name in names[1:])
    assert not list(tmp_path.glob("algorun-simulate/*/output/data/logs/ray-*-attempt-1")), (
        "a job that ends well keeps none"
    )
    assert job.last == f"ok nnodes={hosts} world_size=1"
    assert "warning: the driver" not in job.text


@needs_ray
@pytest.mark.slow
def test_a_driver_that_does_not_connect_is_warned_of(tmp_path, nothing_left):
    job = run("alone", tmp_path, nothing_left)
    assert job.code == 0, job.text
    assert "computed alone" in job.out
    warning = "algorun: warning: the driver has not connected to the job's Ray cluster, which did nothing"
    assert job.text.count(warning) == 1, job.text


@needs_ray
def test_a_stop_reaches_the_driver_first_and_ray_last(tmp_path, nothing_left):
    """The driver saves with the help of all nodes. Every listener is named, and none serves a stranger."""
    job = begin(tmp_path, nothing_left)
    found = listeners(nothing_left)
    own = {"127.0.0.1", "127.0.0.2", "127.0.0.3"}
    everywhere = {name for name, address, _ in found if address not in own}
    # Ray's own servers cannot be bound to one address: each asks for the attempt's token.
    assert everywhere <= {"gcs_server", "raylet", "ray::Holder", "python", "python3"}, found
    assert not [each for each in found if each[2] in (8265, 6379, 10001)], "no dashboard, no port that all jobs share"
    (port,) = [port for name, _, port in found if name == "gcs_server"]
    stranger = subprocess.run(
        [sys.executable, "-c", f"import ray; ray.init('127.0.0.2:{port}')"],
        env=clean_environ(RAY_AUTH_MODE="disabled"), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert stranger.returncode == 1
    assert "Failed to connect to Ray cluster" in stranger.stderr, "it does not know the attempt's token"
    started = time.monotonic()
    job.supervisor("algo-2").send_signal(signal.SIGTERM)
    assert job.end() == 0, job.log.read_text()
    text = job.log.read_text()
    assert "saved on [('algo-1', '127.0.0.2'), ('algo-2', '127.0.0.3')]" in text
    assert "stopped nnodes=2 world_size=1 why=SIGTERM on algo-2" in text
    assert time.monotonic() - started < BOUND_S


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "code", "says"),
    [("own", 1, "exception: rank 0 on algo-1, exit 1, attempt 1: RuntimeError: the driver's own"),
     ("leave", 7, "exit: rank 0 on algo-1, exit 7, attempt 1")],
)  # fmt: skip
def test_the_driver_s_end_is_the_job_s(mode, code, says, tmp_path, nothing_left):
    job = run(mode, tmp_path, nothing_left)
    assert job.code == code, job.text
    (text,) = failures(tmp_path)
    assert text.startswith(says)
