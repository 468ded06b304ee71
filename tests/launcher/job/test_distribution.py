"""Every distribution of both SDKs: which engine, how many ranks, on which hosts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from algorun import codec
from algorun.errors import UserError
from algorun.job import config
from algorun.job.config import JobConfig, Request
from algorun.job.values import Sourced
from algorun.machine.openmpi import OpenMpi
from algorun.plan import cluster, plan, render
from tests.conftest import OPEN_MPI, PROGRAMS, machine

HOSTS = ["algo-1", "algo-2"]
SMDDP = "sagemaker_distributed_dataparallel_enabled"
PROCESSES = "sagemaker_mpi_num_of_processes_per_host"


def write(base: Path, raw: dict[str, object], hosts=HOSTS, **resources: object) -> Path:
    folder = base / "input" / "config"
    folder.mkdir(parents=True)
    described = {"hosts": hosts, "current_host": hosts[0], "current_instance_type": "ml.g5.12xlarge", **resources}
    (folder / "resourceconfig.json").write_text(json.dumps(described))
    (folder / "hyperparameters.json").write_text(json.dumps(raw))
    (base / "code").mkdir()
    (base / "code" / "train.py").write_text("pass")
    return base


def read(base: Path, **environ: str) -> JobConfig:
    return config.read(Request(from_job=True), {"SAGEMAKER_BASE_DIR": str(base), **environ})


def made(job: JobConfig, gpus: int = 4, openmpi: OpenMpi | None = None) -> plan.Plan:
    slots = cluster.assumed_slots(job, cluster.own_slots(job, machine(gpus)))
    here = machine(gpus, openmpi=openmpi)
    return plan.make(job, cluster.resolve(job.resources.hosts, slots, job.launch.outside), here, PROGRAMS)


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
        ({"sagemaker_parameter_server_enabled": "true"}, "parameter servers are not offered"),
        ({"algorun_per_host": "true", "algorun_slots": "2"}, "algorun_per_host: contradicts 2 slots"),
        ({SMDDP: "true", PROCESSES: "two"}, f"hyperparameter {PROCESSES}: 'two' is not a whole number"),
        ({"algorun_per_host": "maybe"}, "'maybe' is neither yes nor no"),
        ({"algorun_engine": "slurm"}, "hyperparameter algorun_engine: 'slurm' is no engine"),
        ({"algorun_args": "a 'b"}, "hyperparameter algorun_args"),
        ({"algorun_cwd": "absent"}, "is not a folder"),
        ({"sagemaker_mpi_enabled": "true", "sagemaker_mpi_custom_mpi_options": '"-x \'"'}, "custom_mpi_options"),
        ({"sagemaker_distribution_instance_groups": '"gpu"'}, "'gpu' is not a list"),
    ],
)
def test_contradictions_are_one_clear_error(raw, says, tmp_path):
    with pytest.raises(UserError, match=says):
        read(write(tmp_path, {"sagemaker_program": '"train.py"', **raw}))


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


def test_options_for_mpirun_arrive_before_the_program(tmp_path):
    raw = {
        "sagemaker_program": '"train.py"', "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_custom_mpi_options": json.dumps("-verbose --NCCL_DEBUG WARN -x 'GREETING=a b'"),
    }  # fmt: skip
    starter = made(read(write(tmp_path, raw))).hosts[0].starter
    at = starter.index("-verbose")
    assert starter[at : at + 5] == ("-verbose", "-x", "NCCL_DEBUG=WARN", "-x", "GREETING=a b")
    assert at < starter.index("/algorun/rank_exec.py")


@pytest.mark.parametrize("word", ["--mca", "-mca", "--gmca"])
def test_the_users_mca_parameter_takes_the_place_of_ours(word, tmp_path):
    """AWS's documentation recommends this very one; mpirun ends at a parameter that it is given twice."""
    raw = {
        "sagemaker_program": '"train.py"', "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_custom_mpi_options": json.dumps(f"{word} btl_vader_single_copy_mechanism cma -x btl"),
    }  # fmt: skip
    starter = made(read(write(tmp_path, raw))).hosts[0].starter
    at = starter.index("btl_vader_single_copy_mechanism")
    assert starter[at - 1 : at + 2] == (word, "btl_vader_single_copy_mechanism", "cma")
    assert starter.count("btl_vader_single_copy_mechanism") == 1
    assert "btl_tcp_if_include" in starter
    assert starter[starter.index("btl") - 1] == "--mca", "a variable of that name is no parameter"


@pytest.mark.parametrize(
    ("major", "options", "ours"),
    [
        (5, "--mca oob_tcp_if_include eth1", "prte_if_include"),
        (5, "--prtemca prte_if_include eth1", "prte_if_include"),
        (4, "--mca oob_tcp_if_include eth1", "oob_tcp_if_include eth0"),
        (5, "--bind-to core", "--bind-to none"),
        (4, "-bind-to core", "--bind-to none"),
        (5, "--map-by node", "--map-by slot"),
    ],
)
def test_what_the_user_says_by_another_name_takes_the_place_of_ours_too(major, options, ours, tmp_path):
    """Open MPI 5 ends at an option that is there twice."""
    raw = {"sagemaker_program": '"train.py"', "sagemaker_mpi_enabled": "true"}
    raw["sagemaker_mpi_custom_mpi_options"] = json.dumps(options)
    line = " ".join(made(read(write(tmp_path, raw)), openmpi=OPEN_MPI[major]).hosts[0].starter)
    assert line.count(options) == 1
    assert ours not in line.replace(options, "")


def test_torchrun_meets_elsewhere_than_its_ranks_where_they_count_hosts(tmp_path):
    """A script that sets MASTER_PORT itself would wait for ever in torchrun's own store."""
    raw = {"sagemaker_program": '"train.py"', "algorun_engine": "torchrun"}
    ranks = made(read(write(tmp_path, raw)))
    hosts = made(read(write(tmp_path / "hosts", {**raw, "algorun_per_host": "true"})))
    assert (ranks.keeps_contract, hosts.keeps_contract) == (True, False)
    for made_plan, ours in ((ranks, True), (hosts, False)):
        contract = {variable.name: variable.value for variable in made_plan.contract}
        assert (f"--master-port={contract['MASTER_PORT']}" in made_plan.hosts[0].starter) == ours
        assert contract["TORCHELASTIC_USE_AGENT_STORE"] == "False"


@pytest.mark.parametrize(
    "option",
    [
        "-np 3",
        "--host a",
        "-hostfile=x",
        "--mca plm_rsh_agent ssh",
        "-mca plm slurm",
        "--prtemca plm_ssh_agent ssh",
        "--prtemca prte_ssh_agent ssh",
    ],
)
def test_options_that_contradict_the_plan_are_refused(option, tmp_path):
    raw = {"sagemaker_program": '"train.py"', "sagemaker_mpi_enabled": "true"}
    raw["sagemaker_mpi_custom_mpi_options"] = json.dumps(option)
    with pytest.raises(UserError, match="contradicts the plan"):
        made(read(write(tmp_path, raw)))


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("8 5 --batch_size 32", ["8", "5", "--batch_size", "32"]),
        ('"8 5"', ["8", "5"]),
        ('["a b", 3, true]', ["a b", "3", "True"]),
        ("trainer.max_epochs=10 'x y=1'", ["trainer.max_epochs=10", "x y=1"]),
        ("7", ["7"]),
        ('""', []),
    ],
)
def test_the_command_line_mode_replaces_hyperparameters(args, expected, tmp_path):
    job = read(write(tmp_path, {"sagemaker_program": '"train.py"', "lr": "1", "algorun_args": args}))
    assert list(job.entry.args) == expected


def test_the_working_folder_can_be_chosen(tmp_path):
    base = write(tmp_path, {"sagemaker_program": '"train.py"', "algorun_cwd": '"sub"'})
    (base / "code" / "sub").mkdir()
    job = read(base)
    assert job.entry.cwd == str(base / "code" / "sub")
    assert job.entry.argv("python") == ("python", "-u", str(base / "code" / "train.py"))


def test_the_code_stays_on_the_module_path_of_a_job_that_works_elsewhere(tmp_path):
    raw = {"sagemaker_program": '"package.train"', "algorun_cwd": f'"{tmp_path}/checkpoints"'}
    base = write(tmp_path / "ml", raw)
    (base / "code" / "package").mkdir()
    (base / "code" / "package" / "train.py").write_text("pass")
    (tmp_path / "checkpoints").mkdir()
    plan_ = made(read(base, PYTHONPATH="/before"))
    assert (plan_.cwd, plan_.argv) == (str(tmp_path / "checkpoints"), ("python", "-u", "-m", "package.train"))
    assert [v.value for v in plan_.env if v.name == "PYTHONPATH"] == [f"{base}/code:/before"]


GROUPS = [
    {"instance_group_name": "data", "instance_type": "ml.c5.xlarge", "hosts": ["algo-1"]},
    {"instance_group_name": "gpu", "instance_type": "ml.g5.xlarge", "hosts": ["algo-2", "algo-3"]},
]


@pytest.mark.parametrize("key", ["sagemaker_mpi_enabled", SMDDP, "sagemaker_torch_distributed_enabled"])
def test_groups_outside_the_distribution_stand_alone(key, tmp_path):
    raw = {"sagemaker_program": '"train.py"', key: "true", "sagemaker_distribution_instance_groups": '["gpu"]'}
    hosts = ["algo-1", "algo-2", "algo-3"]
    job = read(write(tmp_path, raw, hosts, instance_groups=GROUPS, current_group_name="data"))
    slots = {"algo-1": Sourced(1, ""), "algo-2": Sourced(2, ""), "algo-3": Sourced(2, "")}
    found = plan.make(job, cluster.resolve(job.resources.hosts, slots, job.launch.outside), machine(), PROGRAMS)
    assert found.world_size == 4
    assert [[rank.rank for rank in host.ranks] for host in found.hosts] == [[4], [0, 1], [2, 3]]
    alone, first, _ = found.hosts
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "GROUP_RANK"} & set(found.environ(alone, alone.ranks[0]))
    seen = found.environ(first, first.ranks[1])
    assert (seen["RANK"], seen["WORLD_SIZE"], seen["GROUP_RANK"], seen["GROUP_WORLD_SIZE"]) == ("1", "4", "0", "2")
    assert seen["MASTER_ADDR"] == "algo-2"
    assert seen["SM_CURRENT_INSTANCE_GROUP"] == "gpu"
    assert "leader, alone" in render.rank_map(found)
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


@pytest.mark.parametrize(
    ("source", "distributed", "says"),
    [
        ({"entry_script": 3}, {}, "entry_script: 3 is not a string"),
        ({}, {}, "SDK v3: entry_script"),
        ({"entry_script": "absent.py"}, {}, "'absent.py' does not exist"),
        ({"entry_script": "train.py"}, {"process_count_per_node": 0.5}, "0.5 is not a whole number"),
        ({"entry_script": "train.py"}, {"mpi_additional_options": "x"}, "'x' is not a list of strings"),
        ([], {}, "holds a JSON list"),
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
