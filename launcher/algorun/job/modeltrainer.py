"""What SageMaker SDK v3's ModelTrainer wishes: two JSON files in the channel `sm_drivers`.

sourcecode.json describes the user's SourceCode, distributed.json the distribution. The latter has no type: `{}` is
none, Torchrun has "smp", MPI has "mpi_additional_options". Measured with sagemaker-train 1.27.0. The user reaches us
with `SourceCode(command="exec algorun train", entry_script=..)`; we then replace the SDK's own drivers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from algorun.errors import UserError

from .engine import Engine
from .jobfiles import read_object
from .paths import Paths
from .values import Sourced, count

SOURCE_CODE, DISTRIBUTED = "sourcecode.json", "distributed.json"


@dataclass(frozen=True, slots=True)
class ModelTrainer:
    """The wishes of a ModelTrainer job. `slots` None: as many as the machine offers."""

    entry_script: str
    code: Path
    engine: Sourced[Engine] | None
    slots: Sourced[int] | None
    mpi_options: tuple[str, ...]


def read(paths: Paths) -> ModelTrainer | None:
    """The wishes of this job's ModelTrainer, None where it is no job of SDK v3. Raises UserError."""
    folder = paths.channel("sm_drivers")
    if not (folder / SOURCE_CODE).is_file():
        return None
    source = read_object(folder / SOURCE_CODE)
    distributed = read_object(folder / DISTRIBUTED, missing_ok=True)
    entry = source.get("entry_script") or ""
    if not isinstance(entry, str):
        raise UserError(f"{folder / SOURCE_CODE} entry_script", f"{entry!r} is not a string")
    options = distributed.get("mpi_additional_options") or []
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise UserError(f"{folder / DISTRIBUTED} mpi_additional_options", f"{options!r} is not a list of strings")
    engine = None
    if "mpi_additional_options" in distributed:
        engine = Sourced(Engine.MPIRUN, "distributed=MPI(..)")
    elif distributed:
        engine = Sourced(Engine.TORCHRUN, "distributed=Torchrun(..)")
    slots = None
    if distributed.get("process_count_per_node"):
        key = "process_count_per_node"
        slots = Sourced(count(f"distributed {key}", distributed[key]), f"distributed {key}")
    return ModelTrainer(entry, paths.channel("code"), engine, slots, tuple(options))


def argv(user: Mapping[str, object]) -> list[str]:
    """The command line as SDK v3's own drivers make it of the user's hyperparameters, decoded.

    In the file's order, strings as they are, the rest as JSON."""
    out: list[str] = []
    for key, value in user.items():
        out += [f"--{key}", value if isinstance(value, str) else json.dumps(value)]
    return out
