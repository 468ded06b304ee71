"""Faults under the engine `ray`: the same verdict on all hosts, in time, and nothing left over. `make test PART=ray`"""

from __future__ import annotations

import re
import signal
import time

import pytest

from tests.conftest import needs_ray

from .test_ray import BOUND_S, LEAN, begin, failures, processes, run  # noqa: F401: a fixture

pytestmark = needs_ray


@pytest.mark.slow(but=["actor-*"])
@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("task", r"exception: rank 0 on algo-1, exit 1, attempt 1: KeyError: 'not there' \(ray::inner, pid \d+ on algo-[12]\) \(at \S+:\d+\)\n"),
        ("actor", r"exception: rank 0 on algo-1, exit 1, attempt 1: ValueError: bad sample \(ray::Holder.fail, pid \d+ on algo-2\) \(at \S+:\d+\)\n"),
        ("die", r"exception: rank 0 on algo-1, exit 1, attempt 1: ray.exceptions.ActorDiedError: The actor died unexpectedly "
                r"before finishing this task. \(Holder, pid \d+ on algo-2\) \(at \S+:\d+\)\n"),
    ],
)  # fmt: skip
def test_an_exception_of_a_worker_comes_first_with_its_host(mode, says, tmp_path, nothing_left):
    job = run(mode, tmp_path, nothing_left)
    assert job.code == 1, job.text
    (text,) = failures(tmp_path)
    assert re.match(says, text), text
    assert "site-packages/ray" not in text
    assert "ray_driver.py" in text


@pytest.mark.slow(but=["raylet/raylet-*"])
@pytest.mark.parametrize(
    ("name", "host", "says"),
    [
        ("raylet/raylet", "127.0.0.3", "node: algo-2, exit 66: Ray's process raylet ended by signal 9"),
        ("gcs_server", "127.0.0.2", "node: algo-1, exit 66: Ray's process gcs_server ended by signal 9"),
        ("ray start", "127.0.0.3", "node: algo-2, exit 66: ray start ended with 137 (SIGKILL)"),
    ],
)
def test_a_node_that_ends_is_named(name, host, says, tmp_path, nothing_left):
    job = begin(tmp_path, nothing_left)
    found = processes(nothing_left, " start ") if name == "ray start" else processes(nothing_left, name)
    mine = [each for each in found if f"={host}" in " ".join(each.cmdline()) and each.name() != "python"]
    assert len(mine) == 1, (found, job.log.read_text())
    (process,) = mine
    started = time.monotonic()
    process.kill()
    assert job.end() == 66, job.log.read_text()
    print("seconds", time.monotonic() - started)
    logs = tmp_path / "algorun-simulate" / "algo-2" / "output" / "data" / "logs" / "ray-algo-2-attempt-1"
    assert (logs / "raylet.out").stat().st_size
    assert {text.splitlines()[0] for text in failures(tmp_path)} == {says}
    assert time.monotonic() - started < BOUND_S


@pytest.mark.parametrize("host", [pytest.param("algo-1", marks=pytest.mark.slow), "algo-2"])
def test_a_host_that_is_lost_is_named(host, tmp_path, nothing_left):
    job = begin(tmp_path, nothing_left)
    started = time.monotonic()
    job.supervisor(host).kill()
    assert job.end() == 66, job.log.read_text()
    print("seconds", time.monotonic() - started)
    other = "algo-2" if host == "algo-1" else "algo-1"
    assert re.match(f"lost: {host}, exit 66: (host|hub) lost: connection closed", job.failure(other))
    assert time.monotonic() - started < BOUND_S


@pytest.mark.slow
def test_a_node_that_does_not_start_in_time_is_named(tmp_path, nothing_left):
    job = run("spread", tmp_path, nothing_left, ALGORUN_START_S="0.5")
    assert job.code == 67, job.text
    (text,) = failures(tmp_path)
    assert re.match(
        r"engine: algo-[12], exit 67: ray has not started the nodes? of algo-[12](, algo-2)? within 0.5 s", text
    )


def test_a_stop_before_the_driver_starts_ends_the_job_at_once(tmp_path, nothing_left):
    from .running import Running
    from .test_ray import DRIVER

    job = Running("ray", DRIVER, "wait", folder=tmp_path, marker=nothing_left, layout="2x1", **LEAN)
    job.wait_for("the driver on the leader", 1)
    job.supervisor("algo-2").send_signal(signal.SIGTERM)
    assert job.end() == 0, job.log.read_text()
    assert "stopped nnodes=2 world_size=1 why=SIGTERM on algo-2" in job.log.read_text()
    assert "driver 127" not in job.log.read_text()


def test_a_restart_has_a_cluster_of_its_own(tmp_path, nothing_left):
    job = run("again", tmp_path, nothing_left, ALGORUN_RESTARTS="1")
    assert job.code == 0, job.text
    assert job.last == "ok nnodes=2 world_size=1 restarts=1"
    addresses = re.findall(r"driver (127\.0\.0\.2:\d+) \['algo-1', 'algo-2'\]", job.out)
    assert len(set(addresses)) == 2, "a head on another port"


@pytest.mark.slow
def test_a_worker_that_is_killed_for_memory_is_named(tmp_path, nothing_left):
    """Ray's monitor is told to kill early: it compares the memory of the whole machine."""
    import psutil

    used = psutil.virtual_memory()
    threshold = (used.total - used.available + (700 << 20)) / used.total
    job = run("grow", tmp_path, nothing_left, RAY_memory_usage_threshold=f"{threshold:.3f}")
    assert job.code == 1, job.text
    (text,) = failures(tmp_path)
    assert re.match(
        r"exception: rank 0 on algo-1, exit 1, attempt 1: ray.exceptions.OutOfMemoryError: .*pid \d+ on algo-[12]\)",
        text,
    ), text
