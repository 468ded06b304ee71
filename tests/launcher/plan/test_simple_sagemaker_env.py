"""The variables SSM_* of simple-sagemaker: the same names, values and folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from algorun.common.fast_dataclasses import replace
from algorun.plan import cluster, plan
from algorun.plan import simple_sagemaker_env as ssm
from tests.conftest import PROGRAMS, machine
from tests.launcher.job.test_channels import INPUT, processing, training


def environ(config, host: int = 0) -> dict[str, str]:
    found = machine()
    slots = cluster.assumed_slots(config, cluster.own_slots(config, found))
    made = plan.make(config, cluster.resolve(config, slots), found, PROGRAMS)
    whole = made.environ(made.hosts[host], made.hosts[host].ranks[0])
    return {name: value for name, value in whole.items() if name.startswith("SSM_")}


def two_hosts(config):
    resources = replace(config.resources, hosts=("algo-9", "a"))
    return replace(config, input=replace(config.input, resources=resources))


def test_a_training_job(tmp_path):
    config = two_hosts(training(tmp_path, {"train": {}, "my-val": {}}))
    assert environ(config, 1) == {
        "SSM_STATE": f"{tmp_path}/checkpoints",
        "SSM_INSTANCE_STATE": f"{tmp_path}/checkpoints/a",
        "SSM_OUTPUT": f"{tmp_path}/output/data",
        "SSM_TENSORBOARD_DIR": f"{tmp_path}/output/tensorboard",
        "SSM_NUM_NODES": "2",
        "SSM_HOST_RANK": "1",
        "SSM_CHANNEL_TRAIN": f"{tmp_path}/input/data/train",
        "SSM_CHANNEL_MY-VAL": f"{tmp_path}/input/data/my-val",
        "SSM_CHANNEL_MY_VAL": f"{tmp_path}/input/data/my-val",
    }
    assert environ(config, 0)["SSM_INSTANCE_STATE"] == f"{tmp_path}/checkpoints/algo-9"


def test_a_processing_job(tmp_path):
    found = environ(processing(tmp_path, {"ProcessingInputs": [INPUT]}))
    folder = f"{tmp_path}/processing"
    assert (found["SSM_STATE"], found["SSM_OUTPUT"]) == (f"{folder}/state", f"{folder}/output")
    assert found["SSM_INSTANCE_STATE"] == f"{folder}/state/a"
    assert found["SSM_CHANNEL_DATA"] == f"{folder}/input/data"


def test_folders_of_the_environment_are_kept(tmp_path):
    found = environ(training(tmp_path, {}, {"SSM_STATE": "/state/", "SSM_OUTPUT": "/out"}))
    assert (found["SSM_STATE"], found["SSM_OUTPUT"], found["SSM_INSTANCE_STATE"]) == ("/state/", "/out", "/state/a")


@pytest.mark.parametrize(
    ("given", "environ", "needed"),
    [
        (["-c", "CODE_DIR=`pwd` && cd $SSM_INSTANCE_STATE && python $CODE_DIR/main.py"], {}, True),
        (["--epochs", "3"], {}, False),  # many scripts resume if their checkpoint folder has any entry
        (["--epochs", "3"], {"SSM_STATE": "/state"}, True),
    ],
)
def test_the_folder_of_a_host_is_made_where_the_program_relies_on_it(given, environ, needed, tmp_path: Path):
    assert ssm.needs_instance_state(training(tmp_path, {}, environ, algorun_args=given)) is needed
