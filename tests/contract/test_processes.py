"""How many processes a host starts: AWS's toolkit and algorun on the same hyperparameters, for every distribution.

The toolkit's framework modules only choose the runner (sagemaker-pytorch-training 3.0.0, `train`); sagemaker-training
counts its processes.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass

import pytest

from algorun.job.config import LaunchRequest, read_config
from algorun.plan import cluster
from tests.conftest import machine
from tests.contract.test_oracle import program
from tests.contract.trees import Tree, homogeneous, hosts

RUNNERS = {
    "sagemaker_mpi_enabled": "MPI",
    "sagemaker_pytorch_ddp_enabled": "SMDataParallel",
    "sagemaker_torch_distributed_enabled": "TorchDistributed",
    "sagemaker_distributed_dataparallel_enabled": "SMDataParallel",
}
PROCESSES = "sagemaker_mpi_num_of_processes_per_host"
# One start for all cases, and a process for each: the toolkit reads SAGEMAKER_BASE_DIR when it is imported.
COUNT = """
import json, os, sys
import boto3, numpy, paramiko
for kind, environ in json.load(sys.stdin):
    if os.fork() == 0:
        os.environ.clear()
        os.environ.update(environ)
        from sagemaker_training import runner
        print(runner.get(runner.RunnerType[kind])._processes_per_host, flush=True)
        os._exit(0)
    os.wait()
"""

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sagemaker_training") is None,
    reason="sagemaker-training is not installed beside this Python: nothing to compare with",
)


@dataclass(frozen=True)
class Case:
    """One distribution on hosts with this many GPUs."""

    key: str
    asked: bool
    gpus: int = 0
    current: str = "algo-1"

    def __str__(self) -> str:
        return f"{self.key}, {self.gpus} GPUs, {'3 asked for' if self.asked else 'none asked for'}, {self.current}"


CASES = [
    *(Case(key, asked, gpus) for key in RUNNERS for asked in (False, True) for gpus in (0, 4)),
    *(Case(key, True, current="algo-2") for key in RUNNERS),
]


@pytest.fixture(scope="module")
def environs(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, dict[str, str]]:
    """A job folder and the devices of every case, as environment variables."""
    out = {}
    for case in CASES:
        folder = tmp_path_factory.mktemp("case")
        raw = {case.key: "true", **({PROCESSES: "3"} if case.asked else {})}
        Tree("case", raw, hosts=hosts(2), current=case.current, resources=homogeneous(2)).write(folder / "ml")
        if case.gpus:
            program(folder / "tools" / "nvidia-smi", "\n".join(f"echo 'GPU {n}: NVIDIA'" for n in range(case.gpus)))
        out[case] = {"SAGEMAKER_BASE_DIR": str(folder / "ml"), "PATH": f"{folder / 'tools'}:/usr/bin:/bin"}
    return out


@pytest.fixture(scope="module")
def theirs(environs: dict[Case, dict[str, str]]) -> dict[Case, int]:
    asked = [(RUNNERS[case.key], environ) for case, environ in environs.items()]
    done = subprocess.run(
        [sys.executable, "-P", "-c", COUNT],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(environs, map(int, done.stdout.split()), strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_host_starts_as_many_processes_as_under_the_toolkit(case, environs, theirs) -> None:
    ours = cluster.own_slots(read_config(LaunchRequest(from_job=True), environs[case]), machine(case.gpus))
    assert ours.value == theirs[case] == (3 if case.asked else case.gpus or 1)
