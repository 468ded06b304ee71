"""The jobs of the SageMaker SDK v3."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from row import (
    GREETING,
    TEXT,
    Check,
    Row,
    all_work_kept,
    answered,
    argv,
    both,
    breaks_in_the_sdk,
    bundled,
    fails,
    fails_late,
    greeted,
    hyperparameters,
    logs,
    processing,
    ranks,
    stop,
    stopped,
    tasks_of_ray,
)
from sdk_client import Seen
from sdk_environment import write_package, write_ray


def fails_by_driver(seen: Seen) -> None:
    """The SDK's driver writes its own traceback into output/failure; the user's exception is in the log only."""
    assert not seen.ok
    assert seen.code == 1, seen.error
    assert "ValueError: bad batch 17" in seen.log
    assert "CalledProcessError" in seen.failure
    assert len(seen.facts) == 1
    assert json.loads(seen.model["model.json"]) == {"step": 3}


def v3(name: str, source: Mapping[str, str], *, hosts: int, expects: str, check: Check, **more: Any) -> Row:
    """A row of ModelTrainer with a SourceCode of scripts/."""
    options = {"source_code": dict(source)} | more.pop("options", {})
    return Row(name=name, client="v3", kind="ModelTrainer", hosts=hosts, expects=expects, check=check, options=options,
               **more)  # fmt: skip


COMMAND = "exec algorun train"
RAY = {"requirements": "requirements.txt"}


def _on(hosts: int) -> list[Row]:
    """The rows that run on one host and on two."""
    rows = []
    epochs = {"hyperparameters": {"epochs": 2}}
    rows += [
        v3("basic", {"entry_script": "plain.py"}, hosts=hosts, check=both(ranks(hosts, hosts), argv("--epochs", "2")),
           expects=f"{hosts} process(es), one per host", options=epochs),
        v3("Torchrun", {"entry_script": "ddp.py"}, hosts=hosts, check=ranks(2 * hosts, hosts), quick=hosts == 2,
           expects=f"one world of {2 * hosts}",
           options={"distributed": {"type": "Torchrun", "process_count_per_node": 2}}),
        *(v3(f"MPI {each} per host", {"entry_script": "mpi.py"}, hosts=hosts,
             check=both(ranks(each * hosts, hosts), greeted), quick=hosts == 2 and each == 1,
             expects=f"one MPI world of {each * hosts}, the job's variables on every host",
             options={"distributed": {"type": "MPI", "process_count_per_node": each},
                      "environment": {"JOB_GREETING": GREETING}}) for each in (1, 2)),
        v3("command and SAGEMAKER_PROGRAM", {"command": COMMAND}, hosts=hosts, check=ranks(hosts, hosts),
           expects="our launcher, one rank per host",
           options={"environment": {"SAGEMAKER_PROGRAM": "plain.py"}}),
        v3("command and entry_script", {"command": COMMAND, "entry_script": "plain.py"}, hosts=hosts,
           check=both(ranks(hosts, hosts), argv("--epochs", "2")),
           expects="our launcher, one rank per host, hyperparameters as arguments",
           options=epochs),
        v3("command and Torchrun", {"command": COMMAND, "entry_script": "ddp.py"}, hosts=hosts,
           check=both(ranks(2 * hosts, hosts), logs("engine torchrun"), argv("--epochs", "2")),
           expects=f"our launcher by torchrun, one world of {2 * hosts}",
           options={"distributed": {"type": "Torchrun", "process_count_per_node": 2}, **epochs}),
        v3("command and MPI", {"command": COMMAND, "entry_script": "mpi.py"}, hosts=hosts,
           check=both(ranks(2 * hosts, hosts), logs("engine mpirun"), argv("--epochs", "2")),
           expects=f"our launcher by mpirun, one MPI world of {2 * hosts}",
           options={"distributed": {"type": "MPI", "process_count_per_node": 2}, **epochs}),
        Row(name="no SourceCode", client="v3", kind="ModelTrainer", hosts=hosts, check=bundled(hosts),
            quick=hosts == 1, expects="the bundled ddp trains and leaves model.pt",
            options={"hyperparameters": {"epochs": 1, "warmup-epochs": 0}}),
        v3("requirements", {"entry_script": "needs_package.py", "requirements": "requirements.txt"}, hosts=hosts,
           check=answered(hosts), requirements=write_package, expects="installed by the SDK's script with the image's pip"),
        *processing("v3", hosts),
        v3("failing script, command", {"command": COMMAND, "entry_script": "fails.py"}, hosts=hosts,
           check=fails(hosts), expects="exit 1, the exception in log and failure, output and model kept", options=epochs),
    ]  # fmt: skip
    return rows


def _once() -> list[Row]:
    """The rows with a fixed number of hosts."""
    epochs = {"hyperparameters": {"epochs": 2}}
    text = TEXT.replace("'", "")
    values = {"text": text, "quoted": '"', "number": "0.1", "dollar": "$(date) `date`"}
    return [
        v3("hyperparameters with quotes", {"entry_script": "hyperparameters.py"}, hosts=1, check=hyperparameters(values),
           expects="each value arrives unchanged", options={"hyperparameters": {**values, "number": 0.10}}),
        v3("hyperparameters with quotes, command", {"command": COMMAND, "entry_script": "hyperparameters.py"}, hosts=1,
           check=hyperparameters(values), expects="each value arrives unchanged",
           options={"hyperparameters": {**values, "number": 0.10}}),
        v3("hyperparameter with '", {"entry_script": "hyperparameters.py"}, hosts=1, check=breaks_in_the_sdk,
           expects="exit 2 in the SDK's own script, before anything of the image runs",
           options={"hyperparameters": {"text": "it's"}}),
        v3("failing script", {"entry_script": "fails.py"}, hosts=1, check=fails_by_driver,
           expects="exit 1, the exception in the log, output and model kept"),
        *(v3(f"hosts end unevenly, command, host {first + 1} first", {"command": COMMAND, "entry_script": "uneven.py"},
             hosts=2, check=all_work_kept(2), expects="no work lost, the job succeeds",
             options={"hyperparameters": {"first": first}}) for first in (0, 1)),
        v3("Torchrun hosts end unevenly", {"entry_script": "uneven.py"}, hosts=2, check=all_work_kept(2),
           expects="no work lost, the job succeeds",
           options={"distributed": {"type": "Torchrun", "process_count_per_node": 1}}),
        v3("Ray by algorun_engine=ray, command", {"command": COMMAND, "entry_script": "ray_tasks.py", **RAY}, hosts=2,
           check=tasks_of_ray(2), requirements=write_ray,
           expects="Ray from requirements.txt, a driver, tasks on both hosts",
           options={"hyperparameters": {"algorun_engine": "ray"}}),
        v3("Ray by algorun run --engine ray", {"command": "exec algorun run --engine ray ray_tasks.py", **RAY}, hosts=2,
           check=tasks_of_ray(2), requirements=write_ray,
           expects="Ray from requirements.txt, a driver, tasks on both hosts"),
        v3("a host fails late, command", {"command": COMMAND, "entry_script": "uneven.py"}, hosts=2, check=fails_late,
           expects="the job fails, what the other wrote is kept", options={"hyperparameters": {"fail-late": 1}}),
        *(v3(f"docker stop of host {host + 1}, command", {"command": COMMAND, "entry_script": "stops.py"}, hosts=2,
             check=stopped(2), during=stop(host), options=epochs,
             expects="the handler of every rank on both hosts runs, the job ends with 0") for host in (0, 1)),
    ]  # fmt: skip


ROWS = [*_on(1), *_on(2), *_once()]
