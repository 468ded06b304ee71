"""The request of SageMaker SDK v3's ModelTrainer: two JSON files in the channel `sm_drivers`.

sourcecode.json describes the user's SourceCode, distributed.json the distribution. The latter does not name its type:
`{}` means none, a key "smp" means Torchrun, a key "mpi_additional_options" means MPI (measured with sagemaker-train
1.27.0). With `SourceCode(command="exec algorun train", entry_script=..)` algorun replaces the SDK's own drivers.

A job of the SDK's HyperparameterTuner has the channel too, but neither the channel `code` nor a command: SageMaker's tuner starts
the image's own program. The SDK names code and entry script by hyperparameters then, as v2 does (sagemaker-train 1.27.0).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass

from .engine import Engine
from .jobfiles import read_object
from .paths import Paths
from .values import Sourced, count

SOURCE_CODE, DISTRIBUTED = "sourcecode.json", "distributed.json"


@dataclass(frozen=True, slots=True)
class ModelTrainer:
    """The request of a ModelTrainer job. `slots` None: one per GPU."""

    entry_script: str
    code: Path | None  # None: hyperparameters name it
    engine: Sourced[Engine] | None
    slots: Sourced[int] | None
    mpi_options: tuple[str, ...]


def read_modeltrainer(paths: Paths, submit_directory: str) -> ModelTrainer | None:
    """The request of this job's ModelTrainer, None if this is not a job of SDK v3. Raises UserError.

    `submit_directory`: the hyperparameter that names the code of a tuner's job, "" without it.
    """
    folder = paths.channel("sm_drivers")
    if not (folder / SOURCE_CODE).is_file():
        return None
    source = read_object(folder / SOURCE_CODE)
    distributed = read_object(folder / DISTRIBUTED, missing_ok=True)
    entry = source.get("entry_script") or ""
    if not isinstance(entry, str):
        raise UserError(f"{folder / SOURCE_CODE} entry_script", f"{entry!r} is not a string", allowed="a string")
    options = distributed.get("mpi_additional_options") or []
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        where = f"{folder / DISTRIBUTED} mpi_additional_options"
        raise UserError(where, f"{options!r} is not a list of strings", allowed="a list of strings")
    engine = None
    if "mpi_additional_options" in distributed:
        engine = Sourced(Engine.MPIRUN, "distributed=MPI(..)")
    elif distributed:
        engine = Sourced(Engine.TORCHRUN, "distributed=Torchrun(..)")
    slots = None
    if distributed.get("process_count_per_node"):
        key = "process_count_per_node"
        slots = Sourced(count(f"distributed {key}", distributed[key]), f"distributed {key}")
    channel = paths.channel("code")
    code = None if submit_directory and not channel.is_dir() else channel
    return ModelTrainer(entry, code, engine, slots, tuple(options))


def argv(user: Mapping[str, object]) -> list[str]:
    """The command line that SDK v3's own drivers make from the user's decoded hyperparameters.

    Keys in the order of the file, strings unchanged, other values as JSON.
    """
    out: list[str] = []
    for key, value in user.items():
        out += [f"--{key}", value if isinstance(value, str) else json.dumps(value)]
    return out
