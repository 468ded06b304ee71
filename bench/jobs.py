"""The job that is launched: a program that marks its first and its last act, and the /opt/ml tree around it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

MPI = {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}


def program(work_s: float = 0.0) -> str:
    """What a user's script sees of its launcher: the time when it begins, and when it has worked for `work_s`."""
    return f"""\
import os, time
first = time.time()
rank = os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK")
if rank is None:  # the toolkit and the SDK's basic driver give none to the one process of a host
    import json
    rank = json.loads(os.environ["SM_HOSTS"]).index(os.environ["SM_CURRENT_HOST"])
folder = os.environ["MARKS"]
open(f"{{folder}}/first-{{rank}}", "w").write(repr(first))
time.sleep({work_s})
open(f"{{folder}}/last-{{rank}}", "w").write(repr(time.time()))
"""


def job_folder(
    base: Path, host: str, hosts: list[str], hyperparameters: dict[str, str] | None = None, work_s: float = 0.0
) -> Path:
    """An /opt/ml tree with the program in its code folder."""
    shutil.rmtree(base, ignore_errors=True)
    for part in ("input/config", "code", "model", "output/data"):
        (base / part).mkdir(parents=True)
    resources = {"current_host": host, "hosts": hosts, "network_interface_name": "eth0" if len(hosts) > 1 else "lo"}
    values = {"sagemaker_program": "program.py", **(hyperparameters or {})}
    for name, value in (("resourceconfig", resources), ("hyperparameters", values), ("inputdataconfig", {})):
        (base / "input" / "config" / f"{name}.json").write_text(json.dumps(value))
    (base / "code" / "program.py").write_text(program(work_s))
    return base


def job_folders(
    trees: Path, hosts: list[str], hyperparameters: dict[str, str] | None = None, work_s: float = 0.0
) -> Path:
    """One tree for each host, below `trees`."""
    for host in hosts:
        job_folder(trees / host, host, hosts, hyperparameters, work_s)
    return trees
