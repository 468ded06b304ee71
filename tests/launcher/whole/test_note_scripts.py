"""Scripts as notes on distributed training on SageMaker write them, on several hosts, each result by its values."""

from __future__ import annotations

import json
import re
import shutil
import socket
from pathlib import Path

import pytest
import torch

from tests.conftest import needs_mpi
from tests.ports import own_port

from .code_folders import Cluster, tree

NOTE = Path(__file__).parents[1] / "programs" / "note"
# What every framework estimator sends along.
ESTIMATOR = {"sagemaker_container_log_level": 20, "sagemaker_job_name": "note-job", "sagemaker_region": "eu-west-1"}


def run(
    base: Path, marker: str, hosts: tuple[str, ...], program: str, environ: dict[str, str] | None = None, **hp: object
) -> dict[str, str]:
    """The job on all hosts, which must succeed; returns each host's output."""
    for host in hosts:
        code = tree(base, host, hosts, **ESTIMATOR, sagemaker_program=program, **hp) / "code"
        resources = {"hosts": hosts, "current_host": host, "network_interface_name": "lo"}
        (base / host / "input" / "config" / "resourceconfig.json").write_text(json.dumps(resources))
        code.mkdir()
        shutil.copy(NOTE / program, code)
        (base / host / "model").mkdir()
    codes, outs = Cluster(base, marker, hosts, **(environ or {})).end()
    assert codes == [0] * len(hosts), outs
    return outs


def said(out: str, word: str) -> dict[int, dict]:
    """The JSON that each rank printed behind this word."""
    return {int(rank): json.loads(text) for rank, text in re.findall(rf"^\[(\d+) \S+\] {word} (.*)$", out, re.M)}


def port_29500() -> int:
    """The port that such scripts set by hand; another one where somebody on this machine holds it."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("", 29500))
        except OSError:
            return own_port()
    return 29500


# The part tools runs it under Open MPI 4.1.
@pytest.mark.slow
@needs_mpi
def test_mpi_through_the_hyperparameters_of_a_tensorflow_estimator(tmp_path, nothing_left):
    """Three hosts of two processes, as `TensorFlow(distribution={"mpi": ..}, instance_count=3)` asks for them."""
    outs = run(
        tmp_path,
        nothing_left,
        ("algo-1", "algo-2", "algo-3"),
        "mpi_intro.py",
        sagemaker_mpi_enabled=True,
        sagemaker_mpi_num_of_processes_per_host=2,
        sagemaker_mpi_custom_mpi_options="-x NOTE_OPTION=set --mca btl_vader_single_copy_mechanism none",
        model_dir="s3://bucket/note-job/model",
    )
    for rank in range(6):
        host = f"algo-{rank // 2 + 1}"
        assert f"[{rank} {host}] broadcast [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]" in outs[host]
        assert f"[{rank} {host}] average [2.5, 2.5, 2.5, 2.5] of 6 option set" in outs[host]
    everything = "".join(outs.values())
    assert re.findall(r"^\[(\d) \S+\] received (.*)$", everything, re.M) == [("1", "[0, 1, 2]")]
    assert re.findall(r"^\[(\d) \S+\] gathered (.*)$", everything, re.M) == [("0", "[0, 1, 2, 3, 4, 5]")]


# What the supervisor does is the same under all engines.
@pytest.mark.slow
@needs_mpi
def test_gradients_averaged_by_hand_with_a_rank_of_the_list_of_hosts(tmp_path, nothing_left):
    """The script sets RANK, WORLD_SIZE, MASTER_ADDR and port 29500 itself; ours are there and do not disturb it."""
    hosts = ("127.0.0.1", "127.0.0.2", "127.0.0.3")  # hosts[0] must be a name that torch can resolve
    per_host = {"algorun_engine": "mpirun", "algorun_per_host": True}
    port = port_29500()
    outs = run(
        tmp_path,
        nothing_left,
        hosts,
        "average_gradients.py",
        {"MASTER_PORT": "1", "MASTER_ADDR": "nowhere.invalid"},  # what an image or an earlier tool left behind
        **per_host,
        backend="gloo",
        epochs=2,
        lr=0.5,
        **{"master-port": port},
    )
    for rank, host in enumerate(hosts):
        (result,) = said(outs[host], "averaged").values()
        # Two steps of 0.5 times the mean of 1, 2 and 3, from zero.
        assert (result["rank"], result["size"], result["weight"]) == (rank, 3, [-2.0, -20.0])
        given = result["given"]
        assert (given["RANK"], given["WORLD_SIZE"], given["MASTER_ADDR"]) == (str(rank), "3", hosts[0])
        assert given["MASTER_PORT"] not in ("1", "29500", str(port))
    saved = torch.load(tmp_path / hosts[0] / "model" / "model.pth", weights_only=True)
    assert saved["weight"].tolist() == [[-2.0, -20.0]]


# test_simulate.py has one rank on each host.
@pytest.mark.slow
def test_data_parallel_runs_once_per_host(tmp_path, nothing_left):
    outs = run(tmp_path, nothing_left, ("algo-1", "algo-2"), "data_parallel.py")
    for rank, host in enumerate(outs):
        results = said(outs[host], "replicas")
        assert list(results) == [rank]
        result = results[rank]
        assert result["weight"] == pytest.approx([rank + 1.0] * 4, abs=1e-4)
        assert result["loss"] < 1e-6
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        assert [result[name] for name in names] == [str(rank), "2", "0", "1"]
        saved = torch.load(tmp_path / host / "model" / "model.pth", weights_only=True)
        assert saved["weight"].tolist() == [result["weight"]]


@pytest.mark.slow
def test_ddp_over_the_backend_smddp(tmp_path, nothing_left):
    """`distribution={"smdistributed": {"dataparallel": {"enabled": True}}}`: the result is that of the whole batch."""
    outs = run(
        tmp_path,
        nothing_left,
        ("algo-1", "algo-2"),
        "smddp_ddp.py",
        {},
        sagemaker_distributed_dataparallel_enabled=True,
        sagemaker_distributed_dataparallel_custom_mpi_options="",
        sagemaker_instance_type="ml.p4d.24xlarge",
        **{"batch-size": 4, "lr": 0.01},
    )
    results = {**said(outs["algo-1"], "smddp"), **said(outs["algo-2"], "smddp")}
    assert sorted(results) == [0, 1]
    # By hand: two steps of the mean squared error over 0..3, then 4..7, with y = 3x and a weight that starts at 0.
    weight = 0.0
    for batch in (range(4), range(4, 8)):
        weight -= 0.01 * sum(2 * x * (weight * x - 3 * x) for x in batch) / 4
    for result in results.values():
        assert (result["size"], result["local_rank"], result["steps"]) == (2, 0, 2)
        assert result["weight"] == pytest.approx(weight, rel=1e-5)
