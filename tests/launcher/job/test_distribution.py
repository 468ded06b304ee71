"""Every distribution of both SDKs: which engine, how many ranks, on which hosts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from algorun.common import codec
from algorun.common.errors import UserError
from algorun.plan import agreement, plan, render
from tests.conftest import machine

from .distributions import MULTI_WORKER, PROCESSES, SMDDP, made, read, write

V2 = {
    "none": ({}, "native", 1),
    "torch_distributed": ({"sagemaker_torch_distributed_enabled": "true"}, "torchrun", 4),
    "torch_distributed off": ({"sagemaker_torch_distributed_enabled": "false"}, "native", 1),
    "by hand, Python's spelling": ({"sagemaker_torch_distributed_enabled": "True"}, "torchrun", 4),
    "pytorchddp of older SDKs": ({"sagemaker_pytorch_ddp_enabled": "true"}, "native", 4),
    "smddp and pytorchddp": (
        {SMDDP: "true", "sagemaker_instance_type": '"ml.p4d.24xlarge"', "sagemaker_distributed_dataparallel_custom_mpi_options": '""'},
        "native",
        4,
    ),
    "mpi": ({"sagemaker_mpi_enabled": "true", "sagemaker_mpi_custom_mpi_options": '""'}, "mpirun", 4),
    "mpi, 2 processes": (
        {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2", "sagemaker_mpi_custom_mpi_options": '""'},
        "mpirun",
        2,
    ),
    "torch_distributed, 2 processes": ({"sagemaker_torch_distributed_enabled": "true", PROCESSES: "2"}, "torchrun", 2),
    "smddp, 2 processes": ({SMDDP: "true", PROCESSES: "2"}, "native", 2),
    "pytorchddp of older SDKs, 2 processes": ({"sagemaker_pytorch_ddp_enabled": "true", PROCESSES: "2"}, "native", 2),
    "no distribution, 2 processes": ({PROCESSES: "2"}, "native", 1),
    "torch_distributed off, 2 processes": ({"sagemaker_torch_distributed_enabled": "false", PROCESSES: "2"}, "native", 1),
    "modelparallel over torchrun, 2 processes": (
        {"sagemaker_torch_distributed_enabled": "true", "mp_parameters": '{"partitions": 2}', PROCESSES: "2"}, "torchrun", 2,
    ),
    "own hyperparameters win": (
        {"sagemaker_torch_distributed_enabled": "true", "algorun_slots": "3", PROCESSES: "2"}, "torchrun", 3,
    ),
    "mpi off": ({"sagemaker_mpi_enabled": "false", "sagemaker_mpi_num_of_processes_per_host": "2"}, "native", 1),
    "modelparallel over mpi": (
        {
            "sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2", SMDDP: "false",
            "mp_parameters": '{"partitions": 2}', "sagemaker_instance_type": '"ml.p3.16xlarge"',
        },
        "mpirun",
        2,
    ),
    "modelparallel over torchrun": (
        {"sagemaker_torch_distributed_enabled": "true", "mp_parameters": '{"partitions": 2}'}, "torchrun", 4,
    ),
    "multi_worker_mirrored_strategy": ({MULTI_WORKER: "true"}, "native", 1),
    "multi_worker_mirrored_strategy off": ({MULTI_WORKER: "false", "sagemaker_mpi_enabled": "true"}, "mpirun", 4),
    "multi_worker_mirrored_strategy, own hyperparameters": (
        {MULTI_WORKER: "true", "algorun_engine": "mpirun", "algorun_slots": "2"}, "mpirun", 2,
    ),
    "own hyperparameters": ({"algorun_engine": "torchrun", "algorun_slots": "3"}, "torchrun", 3),
}  # fmt: skip


@pytest.mark.parametrize(("raw", "engine", "slots"), V2.values(), ids=V2.keys())
def test_distributions_of_sdk_v2(raw, engine, slots, tmp_path):
    job = read(write(tmp_path, {"sagemaker_program": '"train.py"', **raw}))
    found = made(job)
    assert (found.engine.value, [host.slots.value for host in found.hosts]) == (engine, [slots, slots])
    assert found.world_size == 2 * slots
    assert not [word for word in job.entry.args if "sagemaker" in word or "algorun" in word]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"sagemaker_mpi_enabled": "true", SMDDP: "true"}, f"sagemaker_mpi_enabled and {SMDDP} are both true"),
        ({"sagemaker_parameter_server_enabled": "true"}, "parameter servers are not supported"),
        ({MULTI_WORKER: "maybe"}, f"hyperparameter {MULTI_WORKER}: 'maybe' is not a boolean"),
        *(
            (
                {MULTI_WORKER: "true", key: value},
                f"hyperparameter {MULTI_WORKER}: contradicts {key}; allowed: one distribution",
            )
            for key, value in (
                *((key, "true") for key in (SMDDP, "sagemaker_torch_distributed_enabled", "sagemaker_mpi_enabled")),
                ("mp_parameters", '{"partitions": 2}'),
            )
        ),
        ({"algorun_per_host": "true", "algorun_slots": "2"}, "algorun_per_host: contradicts 2 slots"),
        ({SMDDP: "true", PROCESSES: "two"}, f"hyperparameter {PROCESSES}: 'two' is not a whole number"),
        ({"algorun_per_host": "maybe"}, "'maybe' is not a boolean"),
        ({"algorun_per_host": "true", "algorun_per_gpu": "true"}, "algorun_per_host: contradicts one rank per GPU"),
        ({"algorun_slots": "2", "algorun_per_gpu": "true"}, "algorun_per_gpu: contradicts algorun_slots"),
        ({"algorun_per_gpu": "maybe"}, "'maybe' is not a boolean"),
        ({"algorun_engine": "slurm"}, "hyperparameter algorun_engine: 'slurm' is not an engine"),
        ({"algorun_args": "a 'b"}, "hyperparameter algorun_args"),
        ({"algorun_cwd": "absent"}, "is not a folder"),
        ({"sagemaker_mpi_enabled": "true", "sagemaker_mpi_custom_mpi_options": '"-x \'"'}, "custom_mpi_options"),
        ({"sagemaker_distribution_instance_groups": '"gpu"'}, "'gpu' is not a list"),
    ],
)
def test_contradictions_are_one_clear_error(raw, says, tmp_path):
    with pytest.raises(UserError, match=says):
        read(write(tmp_path, {"sagemaker_program": '"train.py"', **raw}))


@pytest.mark.parametrize(
    ("raw", "environ", "source"),
    [
        ({MULTI_WORKER: "true"}, {}, f"hyperparameter {MULTI_WORKER}"),
        ({MULTI_WORKER: "false"}, {}, ""),
        ({}, {"ALGORUN_TF_CONFIG": "1"}, "ALGORUN_TF_CONFIG"),
        ({MULTI_WORKER: "true"}, {"ALGORUN_TF_CONFIG": "0"}, ""),
        ({MULTI_WORKER: "true", "sagemaker_torch_distributed_enabled": "true"}, {"ALGORUN_TF_CONFIG": "0"}, ""),
        ({"algorun_engine": "torchrun"}, {"ALGORUN_TF_CONFIG": "1"}, "ALGORUN_TF_CONFIG"),
        ({}, {"ALGORUN_TF_CONFIG": ""}, ""),
        ({}, {}, ""),
    ],
)
def test_tf_config_is_there_only_where_it_is_asked_for(raw, environ, source, tmp_path):
    """SDK v2 (2.257.7) sends this key for multi_worker_mirrored_strategy, true or false."""
    job = read(write(tmp_path, {"sagemaker_program": '"train.py"', **raw}), **environ)
    assert job.launch.tf_config == source
    found = made(job)
    configs = [found.environ(host, rank).get("TF_CONFIG") for host in found.hosts for rank in host.ranks]
    assert all(config is not None for config in configs) == bool(source)
    assert agreement.at_the_start(job, machine(), "", 1).get("TF_CONFIG") == ("wanted" if source else None)


@pytest.mark.parametrize(
    ("raw", "environ", "says"),
    [
        ({}, {"ALGORUN_TF_CONFIG": "yes"}, "ALGORUN_TF_CONFIG: 'yes' is neither 1 nor 0; allowed: 1, 0"),
        (
            {"sagemaker_torch_distributed_enabled": "true"},
            {"ALGORUN_TF_CONFIG": "1"},
            "ALGORUN_TF_CONFIG: contradicts sagemaker_torch_distributed_enabled; allowed: one distribution",
        ),
        (
            {},
            {"ALGORUN_TF_CONFIG": "1", "ALGORUN_SHARE_NOTHING": "1"},
            "ALGORUN_TF_CONFIG: contradicts --share-nothing",
        ),
    ],
)
def test_a_wrong_wish_for_tf_config_is_one_clear_error(raw, environ, says, tmp_path):
    with pytest.raises(UserError, match=says) as caught:
        read(write(tmp_path, {"sagemaker_program": '"train.py"', **raw}), **environ)
    assert caught.value.code == 64


DATA, MODEL = "smdistributed.dataparallel", "smdistributed.modelparallel"
PARTS = '{"partitions": 2}'


@pytest.mark.parametrize(
    ("program", "raw", "names", "source"),
    [
        ("train.py", {SMDDP: "true"}, DATA, SMDDP),
        ("train.py", {"sagemaker_mpi_enabled": "true", "mp_parameters": PARTS}, MODEL, "mp_parameters"),
        ("train.py", {SMDDP: "true", "mp_parameters": PARTS}, f"{DATA} and {MODEL}", f"{SMDDP} and mp_parameters"),
        ("train.py", {SMDDP: "false", "mp_parameters": "{}"}, None, None),
        ("train.py", {"sagemaker_torch_distributed_enabled": "true"}, None, None),
        ("pipeline", {"mp_parameters": PARTS}, None, None),
    ],
)
def test_the_plan_says_where_the_compatibility_layer_is_in_use(program, raw, names, source, tmp_path):
    """The bundled `pipeline` reads mp_parameters itself."""
    found = made(read(write(tmp_path, {"sagemaker_program": json.dumps(program), **raw})))
    lines = [line for line in render.plan_text(found).splitlines() if "compatibility layer" in line]
    said = f"imports of {names}: algorun's compatibility layer (hyperparameter {source})"
    assert lines == ([said] if names else [])
    assert codec.from_json(plan.Plan, json.loads(json.dumps(codec.to_json(found)))) == found


def trainer(base: Path, source: object, distributed: object) -> Path:
    """The channels that SDK v3's ModelTrainer adds."""
    write(base, {"lr": "0.10", "name": "it's", "flag": "true", "k": "[1, 2]", "z": "007"})
    drivers, code = base / "input" / "data" / "sm_drivers", base / "input" / "data" / "code"
    drivers.mkdir(parents=True)
    code.mkdir()
    (code / "train.py").write_text("pass")
    (drivers / "sourcecode.json").write_text(json.dumps(source))
    (drivers / "distributed.json").write_text(json.dumps(distributed))
    return base


def test_a_tuner_of_sdk_v3_names_code_and_program_by_hyperparameters(tmp_path):
    """It has the channel sm_drivers and no channel `code`, and SageMaker starts the image's own program."""
    base = trainer(tmp_path, {"entry_script": "train.py", "command": None}, {"process_count_per_node": 2, "smp": None})
    shutil.rmtree(base / "input" / "data" / "code")
    own = {"sagemaker_program": "train.py", "sagemaker_submit_directory": "s3://bucket/sourcedir.tar.gz"}
    given = {"lr": "0.05", "batch": "16", "_tuning_objective_metric": "loss", **own}
    (base / "input" / "config" / "hyperparameters.json").write_text(json.dumps(given))
    shutil.rmtree(base / "code", ignore_errors=True)
    job = read(base)
    assert (job.setup.uri, job.entry.target, job.entry.args) == (
        "s3://bucket/sourcedir.tar.gz",
        "train.py",
        ("--lr", "0.05", "--batch", "16"),
    )
    assert job.launch.engine.value.value == "torchrun"
    assert job.code == str(base / "code")
    assert job.warning == ""


def test_a_tuner_whose_job_names_no_program_is_told_so(tmp_path):
    write(tmp_path, {"lr": "0.05", "_tuning_objective_metric": "loss"})
    shutil.rmtree(tmp_path / "code")
    job = read(tmp_path)
    assert job.entry.target == "ddp"
    assert "SDK v3's tuner drops SourceCode(command=..); fix: name entry_script" in job.warning
    given = {"lr": "0.05", "_tuning_objective_metric": "loss", "sagemaker_program": "ddp"}
    (tmp_path / "input" / "config" / "hyperparameters.json").write_text(json.dumps(given))
    assert read(tmp_path).warning == ""


V3 = {
    "none": ({}, "native", 1),
    "Torchrun": ({"process_count_per_node": None, "smp": None}, "torchrun", 4),
    "Torchrun, 2 processes": ({"process_count_per_node": 2, "smp": None}, "torchrun", 2),
    "MPI": ({"process_count_per_node": None, "mpi_additional_options": None}, "mpirun", 4),
    "MPI, 2 processes": ({"process_count_per_node": 2, "mpi_additional_options": ["-x", "A=b"]}, "mpirun", 2),
}


@pytest.mark.parametrize(("distributed", "engine", "slots"), V3.values(), ids=V3.keys())
def test_wishes_of_sdk_v3_are_read_from_its_files(distributed, engine, slots, tmp_path):
    job = read(trainer(tmp_path, {"entry_script": "train.py", "command": "exec algorun train"}, distributed))
    found = made(job)
    assert (found.engine.value, found.hosts[1].slots.value) == (engine, slots)
    # In the file's order, strings raw and the rest as JSON: as the SDK's own drivers pass them.
    assert job.entry.args == ("--lr", "0.1", "--name", "it's", "--flag", "true", "--k", "[1, 2]", "--z", "007")
    assert job.entry.cwd == str(tmp_path / "input" / "data" / "code")
    if "A=b" in str(distributed):
        assert "A=b" in found.hosts[0].starter
    if not distributed:
        (tmp_path / "input" / "data" / "sm_drivers" / "distributed.json").unlink()
        assert read(tmp_path) == job


@pytest.mark.parametrize(
    ("source", "distributed", "says"),
    [
        ({"entry_script": 3}, {}, "entry_script: 3 is not a string"),
        ({}, {}, "SDK v3: entry_script"),
        ({"entry_script": "absent.py"}, {}, "'absent.py' does not exist"),
        ({"entry_script": "train.py"}, {"process_count_per_node": 0.5}, "0.5 is not a whole number"),
        ({"entry_script": "train.py"}, {"mpi_additional_options": "x"}, "'x' is not a list of strings"),
        ([], {}, "contains a JSON list"),
    ],
)
def test_broken_files_of_sdk_v3_are_refused(source, distributed, says, tmp_path):
    with pytest.raises(UserError, match=says):
        read(trainer(tmp_path, source, distributed))


def test_share_nothing_gives_no_ranks(tmp_path):
    job = read(write(tmp_path, {"sagemaker_program": '"train.py"'}), ALGORUN_SHARE_NOTHING="1")
    found = made(job)
    assert found.engine.value == "native"
    for host in found.hosts:
        seen = found.environ(host, host.ranks[0])
        assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} & set(seen)
        assert seen["SM_CURRENT_HOST"] == host.host
