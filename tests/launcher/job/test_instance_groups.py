"""Groups of instances: which hosts the distribution has, and what those outside of it run."""

from __future__ import annotations

import json

import pytest

from algorun.common.errors import UserError
from algorun.job.values import Sourced
from algorun.plan import cluster, plan, render
from tests.conftest import PROGRAMS, machine

from .distributions import MULTI_WORKER, SMDDP, made, read, write

GROUPS = [
    {"instance_group_name": "data", "instance_type": "ml.c5.xlarge", "hosts": ["algo-1"]},
    {"instance_group_name": "gpu", "instance_type": "ml.g5.xlarge", "hosts": ["algo-2", "algo-3"]},
]


@pytest.mark.parametrize("key", ["sagemaker_mpi_enabled", SMDDP, "sagemaker_torch_distributed_enabled", MULTI_WORKER])
def test_groups_outside_the_distribution_stand_alone(key, tmp_path):
    raw = {"sagemaker_program": '"train.py"', key: "true", "sagemaker_distribution_instance_groups": '["gpu"]'}
    hosts = ["algo-1", "algo-2", "algo-3"]
    job = read(write(tmp_path, raw, hosts, instance_groups=GROUPS, current_group_name="data"))
    slots = {"algo-1": Sourced(1, ""), "algo-2": Sourced(2, ""), "algo-3": Sourced(2, "")}
    found = plan.make(job, cluster.resolve(job, slots), machine(), PROGRAMS)
    assert found.world_size == 4
    assert [[rank.rank for rank in host.ranks] for host in found.hosts] == [[4], [0, 1], [2, 3]]
    alone, first, _ = found.hosts
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "GROUP_RANK"} & set(found.environ(alone, alone.ranks[0]))
    seen = found.environ(first, first.ranks[1])
    assert (seen["RANK"], seen["WORLD_SIZE"], seen["GROUP_RANK"], seen["GROUP_WORLD_SIZE"]) == ("1", "4", "0", "2")
    assert seen["MASTER_ADDR"] == "algo-2"
    assert seen["SM_CURRENT_INSTANCE_GROUP"] == "gpu"
    assert "leader, alone" in render.rank_map(found)
    if key == MULTI_WORKER:
        cluster_of = {
            host.host: json.loads(found.environ(host, host.ranks[0]).get("TF_CONFIG", "{}")) for host in found.hosts
        }
        assert cluster_of["algo-1"] == {}
        assert [address.split(":")[0] for address in cluster_of["algo-3"]["cluster"]["worker"]] == ["algo-2"] * 2 + [
            "algo-3"
        ] * 2
    if key == "sagemaker_mpi_enabled":
        assert "algo-2:2,algo-3:2" in alone.starter
    elif "torch" in key:
        assert not alone.starter
        assert "--nnodes=2" in first.starter
        assert "--node-rank=0" in first.starter


@pytest.mark.parametrize(("current", "expected"), [("algo-1", [1, 2, 2]), ("algo-2", [1, 2, 2])])
def test_a_host_that_stands_alone_runs_the_program_once(current, expected, tmp_path):
    """However many processes per host the distribution asks for, and whatever GPUs there are."""
    raw = {
        "sagemaker_program": '"train.py"', "sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2",
        "sagemaker_distribution_instance_groups": '["gpu"]',
    }  # fmt: skip
    group = "data" if current == "algo-1" else "gpu"
    base = write(tmp_path, raw, ["algo-1", "algo-2", "algo-3"], instance_groups=GROUPS, current_group_name=group)
    path = base / "input" / "config" / "resourceconfig.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"current_host": current}))
    found = made(read(base))
    assert [host.slots.value for host in found.hosts] == expected
    assert found.world_size == 4


def test_a_group_that_is_not_there_is_refused(tmp_path):
    raw = {"sagemaker_program": '"train.py"', SMDDP: "true", "sagemaker_distribution_instance_groups": '["tpu"]'}
    with pytest.raises(UserError, match="there is no group tpu; allowed: data, gpu"):
        read(write(tmp_path, raw, ["algo-1", "algo-2", "algo-3"], instance_groups=GROUPS))
