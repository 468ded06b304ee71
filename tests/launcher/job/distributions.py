"""Job folders as the SDKs write them, and the plan of each."""

from __future__ import annotations

import json
from pathlib import Path

from algorun.job import config
from algorun.job.config import JobConfig, LaunchRequest
from algorun.machine.openmpi import OpenMpi
from algorun.plan import cluster, plan
from tests.conftest import PROGRAMS, machine

HOSTS = ["algo-1", "algo-2"]
SMDDP = "sagemaker_distributed_dataparallel_enabled"
MULTI_WORKER = "sagemaker_multi_worker_mirrored_strategy_enabled"
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
    return config.read_config(LaunchRequest(from_job=True), {"SAGEMAKER_BASE_DIR": str(base), **environ})


def made(job: JobConfig, gpus: int = 4, openmpi: OpenMpi | None = None) -> plan.Plan:
    slots = cluster.assumed_slots(job, cluster.own_slots(job, machine(gpus)))
    here = machine(gpus, openmpi=openmpi)
    return plan.make(job, cluster.resolve(job, slots), here, PROGRAMS)
