"""The engines: what can start the ranks of a job.

To add one, write `plan/engines/NAME.py` with its own processes, and register it: a member of `Engine` here, with what the
launcher must know about it, and its line in STARTERS (plan/engines/registry.py). An engine that starts ranks and names
them by variables of its own also needs those names in inside/rank_exec.py. Nothing else compares engine names, and a
test refuses an engine that STARTERS lacks.
"""

from __future__ import annotations

from enum import StrEnum

from algorun.errors import UserError


class Engine(StrEnum):
    """An engine by its name, as `--engine` takes it.

    `starts_ranks`: the engine's own processes start the ranks; otherwise each host's supervisor starts them.
    `needs_openmpi`: every host must have Open MPI.
    """

    starts_ranks: bool
    needs_openmpi: bool

    NATIVE = "native", False, False
    TORCHRUN = "torchrun", True, False
    MPIRUN = "mpirun", True, True

    def __new__(cls, name: str, starts_ranks: bool, needs_openmpi: bool) -> Engine:
        engine = str.__new__(cls, name)
        engine._value_ = name
        engine.starts_ranks, engine.needs_openmpi = starts_ranks, needs_openmpi
        return engine

    @classmethod
    def of(cls, where: str, name: str) -> Engine:
        """The engine called `name`. Raises UserError, with `where` the name was given, if there is none."""
        for engine in cls:
            if engine == name:
                return engine
        raise UserError(where, f"{name!r} is no engine", allowed=", ".join(cls))
