"""Hosts that cannot run the job: real supervisors, on a machine whose /sys is a folder of the test's."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT, clean_environ
from tests.ports import own_port

HOST = """
import os, resource, sys
from algorun import inside
from algorun.host import run
from algorun.job import config
from algorun.machine import probe
from algorun.plan.engines.base import Programs
from algorun.job.request import LaunchRequest
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
wish = LaunchRequest(target=sys.argv[2], layout=(int(sys.argv[3]), int(sys.argv[4])))
job = config.read_config(wish, dict(os.environ))
programs = Programs(sys.executable, os.path.dirname(inside.__file__))
sys.exit(run.execute(job, probe.look(dict(os.environ), sys.argv[1]), programs))
"""
FOUND_S = 30.0  # 0.5 s where nothing else runs; far below the gate's limit of 55 s


def start(
    folder: Path, host: str, hosts: list[str], port: int, root: Path, slots: int = 1, **more: str
) -> subprocess.Popen[str]:
    base = folder / host
    (base / "input" / "config").mkdir(parents=True)
    for name in ("model", "output"):
        (base / name).mkdir()
    resources = {"current_host": host, "hosts": hosts, "network_interface_name": "lo"}
    (base / "input" / "config" / "resourceconfig.json").write_text(json.dumps(resources))
    script = folder / "train.py"
    script.write_text("print('trained')\n")
    addresses = ",".join(f"{name}=127.0.0.{number}" for number, name in enumerate(hosts, 1))
    environ = clean_environ(
        SAGEMAKER_BASE_DIR=str(base), ALGORUN_ADDRESSES=addresses, ALGORUN_CONTROL_PORT=str(port), ALGORUN_GATE_S="55"
    )
    del environ["CUDA_VISIBLE_DEVICES"]
    environ |= more
    argv = [sys.executable, "-c", HOST, str(root), str(script), str(len(hosts)), str(slots)]
    return subprocess.Popen(
        argv, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )  # fmt: skip


@pytest.fixture
def root(tmp_path):
    """A machine with an EFA device, NCCL's plugin for it and two GPUs."""
    folder = tmp_path / "machine"
    (folder / "sys/class/infiniband/efa_0/device/infiniband_verbs/uverbs0").mkdir(parents=True)
    (folder / "dev/infiniband/uverbs0").mkdir(parents=True)
    (folder / "usr/lib").mkdir(parents=True)
    (folder / "usr/lib/libnccl-net.so").touch()
    (folder / "sys/class/infiniband/efa_0/device/vendor").write_text("0x1d0f\n")
    (folder / "sys/class/net/lo").mkdir(parents=True)
    (folder / "dev/shm").mkdir(parents=True)
    for number in range(2):
        (folder / f"dev/nvidia{number}").touch()
    return folder


def test_efa_without_memory_to_pin_is_found_at_once_and_on_every_host(tmp_path, root):
    port, hosts = own_port(), ["algo-1", "algo-2"]
    plain = tmp_path / "plain"
    (plain / "sys/class/net/lo").mkdir(parents=True)
    begin = time.monotonic()
    running = [start(tmp_path, host, hosts, port, where) for host, where in zip(hosts, (plain, root), strict=True)]
    said = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [69, 69], said
    expected = (
        "preflight: algo-2, exit 69: memlock: limited to 65536 bytes; EFA (efa_0) needs it unlimited; "
        "fix: docker run --ulimit memlock=-1\n"
    )
    assert [(tmp_path / host / "output" / "failure").read_text() for host in hosts] == [expected] * 2
    assert time.monotonic() - begin < FOUND_S


def test_one_host_with_too_little_to_pin_is_warned_and_trains(tmp_path, root):
    process = start(tmp_path, "algo-1", ["algo-1"], own_port(), root)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 0, said
    assert said.count("algorun: warning: memlock: limited to 65536 bytes") == 1
    assert "trained" in said


def test_more_ranks_than_gpus_are_warned_of(tmp_path, root):
    process = start(tmp_path, "algo-1", ["algo-1"], own_port(), root, slots=3)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 0, said
    assert "warning: GPUs: 3 ranks (-j) on 2 GPUs (/dev/nvidia*); fix: 2 slots" in said


def test_gpus_that_do_not_exist_end_the_job_before_a_rank_starts(tmp_path, root):
    process = start(tmp_path, "algo-1", ["algo-1"], own_port(), root, CUDA_VISIBLE_DEVICES="7")
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 69, said
    expected = (
        "preflight: algo-1, exit 69: CUDA_VISIBLE_DEVICES: '7' names no GPU of this machine, which has 2; fix: 0 to 1,"
    )
    assert (tmp_path / "algo-1" / "output" / "failure").read_text().startswith(expected)
    assert "trained" not in said


def test_a_user_s_script_on_gpus_without_a_driver_is_warned_and_runs(tmp_path, root):
    process = start(tmp_path, "algo-1", ["algo-1"], own_port(), root)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 0, said
    assert said.count("warning: NVIDIA driver: 2 GPUs (/dev/nvidia*), but programs find no libcuda.so.1;") == 1
    assert "trained" in said


def test_hidden_gpus_are_not_talked_about(tmp_path, root):
    process = start(tmp_path, "algo-1", ["algo-1"], own_port(), root, CUDA_VISIBLE_DEVICES="")
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 0, said
    assert "GPU" not in said
    assert "NVIDIA" not in said
