"""Job folders as the platform and its clients write them: the table on which the toolkit and algorun are compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

FRAMEWORK = str(Path(__file__).parent / "framework")
SCRIPT = "print('a user')\n"
SHOW = 'echo "${BASH_VERSION:-sh} $- $0"; printf \'<%s>\' "$@"\n'
SH, BASH = f"#!/bin/sh\n{SHOW}", f"#!/bin/bash\n{SHOW}"


def by_json(values: Mapping[str, object]) -> dict[str, str]:
    """As framework estimators of SageMaker SDK v2 send the user's values."""
    return {key: json.dumps(value) for key, value in values.items()}


def by_str(values: Mapping[str, object]) -> dict[str, str]:
    """As SDK v2's Estimator without source_dir sends them."""
    return {key: str(value) for key, value in values.items()}


def by_v3(values: Mapping[str, object]) -> dict[str, str]:
    """As SDK v3's ModelTrainer sends them."""
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}


ENCODINGS = {"json": by_json, "str": by_str, "v3": by_v3}


def hosts(count: int) -> tuple[str, ...]:
    return tuple(f"algo-{number}" for number in range(1, count + 1))


def channel(**more: str) -> dict[str, str]:
    return {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None", **more}


@dataclass(frozen=True)
class Tree:
    """One job folder, its environment, and the machine around it. `program` None: the job names none."""

    name: str
    hyperparameters: Mapping[str, object] = field(default_factory=dict)
    program: str | None = "train.py"
    hosts: tuple[str, ...] = ("algo-1",)
    current: str = "algo-1"
    resources: Mapping[str, object] = field(default_factory=lambda: {"network_interface_name": "eth0"})
    channels: Mapping[str, object] = field(default_factory=lambda: {"training": channel()})
    files: Mapping[str, str] = field(default_factory=lambda: {"train.py": SCRIPT})
    executable: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    neurons: int = 0
    cpus: int = 8
    allowed_cpus: int = 8  # by the cgroup's quota
    default_interface: str = "eth0"

    def write(self, base: Path) -> None:
        """Writes the folder: input/config and code."""
        config, code = base / "input" / "config", base / "code"
        config.mkdir(parents=True)
        (base / "output").mkdir()
        raw = dict(self.hyperparameters)
        if self.program is not None:
            raw.setdefault("sagemaker_program", json.dumps(self.program))
        resources = {"current_host": self.current, "hosts": list(self.hosts), **self.resources}
        for name, value in (
            ("hyperparameters", raw), ("resourceconfig", resources), ("inputdataconfig", self.channels)
        ):  # fmt: skip
            (config / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
        for name, text in self.files.items():
            path = code / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755 if name in self.executable else 0o644)


GROUPS = (
    {"instance_group_name": "cpu", "instance_type": "ml.c5.xlarge", "hosts": ["algo-1", "algo-3"]},
    {"instance_group_name": "gpu", "instance_type": "ml.g5.12xlarge", "hosts": ["algo-2", "algo-10"]},
)


def heterogeneous(name: str, current: str, group: int, **more: object) -> Tree:
    resources = {
        "network_interface_name": "eth0",
        "current_group_name": GROUPS[group]["instance_group_name"],
        "current_instance_type": GROUPS[group]["instance_type"],
        "instance_groups": list(GROUPS),
    }
    return Tree(name, hosts=("algo-1", "algo-10", "algo-2", "algo-3"), current=current, resources=resources, **more)


def homogeneous(count: int) -> dict[str, object]:
    """resourceconfig.json as the platform writes it since it has groups."""
    return {
        "network_interface_name": "eth0",
        "current_instance_type": "ml.p4d.24xlarge",
        "current_group_name": "homogeneousCluster",
        "instance_groups": [
            {
                "instance_group_name": "homogeneousCluster",
                "instance_type": "ml.p4d.24xlarge",
                "hosts": list(hosts(count)),
            }
        ],
    }


VALUES = {
    "epochs": 3,
    "lr": 0.001,
    "amp": True,
    "resume": None,
    "name": "a b",
    "empty": "",
    "digits": "007",
    "sizes": [1, 2.5, "x", None, True],
    "opt": {"b": 2, "a": {"z": [1]}, "c": None},
}
ON = {"sagemaker_container_log_level": "20", "sagemaker_job_name": '"job-7"', "sagemaker_region": '"eu-west-1"'}
MPI = {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_custom_mpi_options": '""'}
LONG = "x" * 2500

TREES = [
    # The user's hyperparameters.
    Tree("plain"),
    Tree("numbers", {"a1": "0.10", "a2": "1e-3", "a3": "007", "a4": "-0", "a5": "1E5", "a6": "+1", "a7": ".5", "a8": " 1 "}),
    Tree("words", {"w1": "True", "w2": "true", "w3": "None", "w4": "null", "w5": "nan", "w6": "NaN", "w7": "-Infinity"}),
    Tree("huge-numbers", {"big": "1" * 400, "bigger": "1" * 5000, "infinite": "1e400", "precise": "0.1000000000000000055"}),
    Tree("unicode", by_json({"name": "Grüße 世界 🚀", "ключ": "ß"}) | {"raw": "Grüße 世界 🚀"}),
    Tree("quotes", {"t1": "it's", "t2": '"twice" \'once\'', "t3": "$(rm -rf /) `ls` $HOME", "t4": "back\\slash", "t5": '"a\\"b"'}),
    Tree("lines", {"l1": "one\ntwo\n", "l2": "tab\tand\rreturn", "l3": '"one\\ntwo"'}),
    Tree("empty-values", {"e1": "", "e2": '""', "e3": "null", "e4": "{}", "e5": "[]", "e6": " "}),
    Tree("long-values", {"long": LONG, "longer": json.dumps([LONG] * 2)}),
    Tree("too-much-for-a-process", {f"long{number:02}": LONG for number in range(60)}),
    Tree("dashes-and-dots", {"batch-size": "32", "model.depth": "3", "a-b.c_d": '"x"', "-lead": "1"}),
    Tree("dash-and-underscore", {"batch-size": "1", "batch_size": "2"}),
    Tree("case", {"lr": "1", "LR": "2", "Lr": "3"}),
    Tree("one-character", {"b": "32", "x": '"y"', "é": "1", "-": "2"}),
    Tree("empty-key", {"": "1"}),
    Tree("lists", {"v1": "[]", "v2": "[1, 2.50, null, true]", "v3": '["a b", "it\'s"]', "v4": "[[1], {}]"}),
    Tree("dictionaries", {"d1": "{}", "d2": '{"b": 1, "a": null, "c": true}', "d3": '{"x": {"y": [1, "z"]}, "é": "ü"}'}),
    Tree("not-strings", {"n1": 5, "n2": 0.1, "n3": True, "n4": None, "n5": [1, "2"], "n6": {"b": 1, "a": "2"}}),
    *(Tree(f"encoding-{name}", encode(VALUES)) for name, encode in ENCODINGS.items()),
    Tree("tuning", {"_tuning_objective_metric": "loss", "default_user_module_name": "m", "_kept": "1", "sagemaker": "2"}),
    Tree("like-variables", {"model_dir": '"s3://bucket/model"', "hosts": "1", "channel_x": "2", "s": "3"}),
    # The platform's hyperparameters.
    Tree("platform", {**ON, "sagemaker_submit_directory": '"s3://bucket/sourcedir.tar.gz"', "lr": "0.1"}),
    Tree("log-level-word", {"sagemaker_container_log_level": '"DEBUG"'}),
    Tree("log-level-debug", {"sagemaker_container_log_level": "10"}),
    Tree("framework-params", {"sagemaker_estimator_class_name": '"PyTorch"', "sagemaker_s3_output": '"s3://b/o"',
                              "sagemaker_enable_cloudwatch_metrics": "false", "sagemaker_instance_type": '"ml.m5.large"',
                              "sagemaker_estimator_module": '"sagemaker.pytorch.estimator"'}),
    Tree("platform-by-str", {"sagemaker_job_name": "job-7", "sagemaker_program": "train.py", "sagemaker_region": "eu-west-1"}),
    Tree("job-name-of-the-platform", environ={"TRAINING_JOB_NAME": "job-8"}),
    Tree("both-job-names", {"sagemaker_job_name": '"job-7"'}, environ={"TRAINING_JOB_NAME": "job-8"}),
    Tree("region-of-the-sdk", {"sagemaker_region": '"eu-west-1"'}, environ={"AWS_DEFAULT_REGION": "us-east-1"}),
    Tree("region-of-boto3", environ={"AWS_DEFAULT_REGION": "us-east-1", "AWS_REGION": "us-west-2"}),
    Tree("region-of-the-platform", environ={"AWS_REGION": "us-west-2"}),
    Tree("region-null", {"sagemaker_region": "null"}, environ={"SAGEMAKER_REGION": "us-west-2"}),
    # Distributions.
    Tree("mpi", {**MPI, "lr": "1"}),
    Tree("mpi-hosts", {**MPI, "sagemaker_mpi_num_of_processes_per_host": "2"}, hosts=hosts(3), resources=homogeneous(3)),
    Tree("mpi-gpus", MPI, gpus=4),
    Tree("mpi-false", {"sagemaker_mpi_enabled": "false"}),
    Tree("mpi-false-by-str", {"sagemaker_mpi_enabled": "False"}),
    Tree("torch-distributed", {"sagemaker_torch_distributed_enabled": "true", "sagemaker_instance_type": '"ml.p4d.24xlarge"'},
         hosts=hosts(2), current="algo-2", resources=homogeneous(2)),
    Tree("smddp", {"sagemaker_distributed_dataparallel_enabled": "true", "sagemaker_instance_type": '"ml.p4d.24xlarge"',
                   "sagemaker_distributed_dataparallel_custom_mpi_options": '""'}, gpus=4),
    Tree("pytorchddp", {"sagemaker_pytorch_ddp_enabled": "true"}, hosts=hosts(2)),
    Tree("modelparallel", {"mp_parameters": '{"partitions": 2, "ddp": true}', "sagemaker_distributed_dataparallel_enabled": "false"}),
    Tree("modelparallel-variable", environ={"SM_HP_MP_PARAMETERS": '{"partitions":2}'}),
    # Hosts, groups and machines.
    Tree("twelve-hosts", hosts=hosts(12), current="algo-10", resources=homogeneous(12)),
    Tree("hosts-of-local-mode", hosts=("algo-2-x7k2p", "algo-1-9ab"), current="algo-1-9ab",
         resources={"network_interface_name": "eth0", "current_instance_type": "local"}),
    Tree("bare-resources", resources={}),
    Tree("bare-resources-elsewhere", resources={}, default_interface="ens5"),
    Tree("interface-without-a-name", resources={"network_interface_name": ""}, default_interface="ens5"),
    Tree("interface-that-is-not-there", resources={"network_interface_name": "ethwe"}),
    heterogeneous("groups-leader", "algo-1", 0),
    heterogeneous("groups-other", "algo-10", 1),
    heterogeneous("groups-distribution", "algo-2", 1, hyperparameters={"sagemaker_distribution_instance_groups": '["gpu"]',
                                                                        "sagemaker_distributed_dataparallel_enabled": "true"}),
    heterogeneous("groups-torch", "algo-3", 0, hyperparameters={"sagemaker_torch_distributed_enabled": "true"}),
    Tree("topology", hosts=hosts(2), resources={**homogeneous(2), "topology": [
        {"hostName": "algo-1", "capacityUnitId": "u1"}, {"hostName": "algo-2", "capacityUnitId": "u2"}]}),
    Tree("gpus", gpus=4),
    Tree("neurons", neurons=2),
    Tree("fewer-cpus", allowed_cpus=2),
    # Channels.
    Tree("no-channels", channels={}),
    Tree("many-channels", channels={f"c{number}": channel() for number in (3, 1, 20, 10, 2)} | {"train": channel(ContentType="text/csv")}),
    Tree("channel-names", channels={"my-data": channel(), "my.data": channel(), "Train": channel(), "train": channel()}),
    # The program.
    Tree("program-of-the-environment", {"lr": "1"}, program="absent.py", environ={"SAGEMAKER_PROGRAM": "train.py"}),
    Tree("program-below", program="src/train.py", files={"src/train.py": SCRIPT}),
    Tree("shell", {"lr": "0.10", "text": "it's $HOME"}, program="run.sh", files={"run.sh": SH}, executable=("run.sh",)),
    Tree("shell-not-executable", {"lr": "0.10"}, program="run.sh", files={"run.sh": SH}),
    Tree("first-line-with-options", {"lr": "0.10"}, program="run.sh", files={"run.sh": f"#! /bin/bash -eu \n{SHOW}"}),
    Tree("bash-not-executable", {"lr": "0.10"}, program="run.sh", files={"run.sh": BASH}),
    Tree("shell-without-a-first-line", program="bin/run.sh", files={"bin/run.sh": SHOW}, executable=("bin/run.sh",)),
    Tree("command", {"b": "1"}, program="train", files={"train": BASH}, executable=("train",)),
    Tree("command-not-executable", program="train", files={"train": BASH}),
    Tree("package", {"lr": "1"}, files={"train.py": SCRIPT, "setup.py": ""}),
    Tree("name-as-a-path", program="./train.py"),
    Tree("name-with-a-space", program="my train.py", files={"my train.py": SCRIPT}),
    Tree("no-program", {"lr": "1"}, program=None, files={}),
    # The environment.
    Tree("framework-image", {"lr": "1"}, environ={"SAGEMAKER_TRAINING_MODULE": "framework_of_an_image:main", "PYTHONPATH": FRAMEWORK}),
    Tree("python-path", environ={"PYTHONPATH": "/opt/one:/opt/two"}),
    Tree("set-by-the-user", environ={"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "ib0", "OMP_NUM_THREADS": "3", "MASTER_PORT": "1234", "MY_OWN": "x"}),
    Tree("mpi-set-by-the-user", MPI, environ={"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "ib0", "NCCL_MIN_NRINGS": "1"}),
    Tree("stale", {"lr": "1"}, environ={"SM_HPS": "{}", "SM_HP_LR": "9", "SM_MODEL_DIR": "/old", "CURRENT_HOST": "old", "SM_HP_OLD": "kept"}),
]  # fmt: skip

# What neither starts. The words of the toolkit and of algorun.
REFUSED = [
    (Tree("absolute-name", program="/bin/true"), "leading '/'", "is not an entry point"),
    (Tree("option-as-a-name", program="-c"), "leading '-'", "is not an entry point"),
    (Tree("zero-byte", {"text": '"a\\u0000b"'}), "null byte", "hyperparameter 'text': contains a zero byte"),
    (Tree("half-a-pair", {"text": '"a\\ud800b"'}), "surrogates not allowed", "hyperparameter 'text': contains U+D800"),
]  # fmt: skip
