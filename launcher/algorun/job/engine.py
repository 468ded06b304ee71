"""The engines: the ways of starting a job's ranks.

CONTRIBUTING.md says how to add one. No other code compares engine names, and a test fails if `starter`
(plan/engines/registry.py) lacks one.
"""

from __future__ import annotations

from enum import StrEnum

from algorun.common.errors import UserError


class Engine(StrEnum):
    """An engine by its name, as `--engine` takes it.

    `starts_ranks`: the engine's own processes start the ranks; otherwise each host's supervisor starts them.
    `needs_openmpi`: every host must have Open MPI.
    `has_driver`: the engine's processes form a cluster, and the job has one rank: the driver, on the leader.
    """

    starts_ranks: bool
    needs_openmpi: bool
    has_driver: bool

    NATIVE = "native", False, False, False
    TORCHRUN = "torchrun", True, False, False
    MPIRUN = "mpirun", True, True, False
    RAY = "ray", False, False, True

    def __new__(cls, name: str, starts_ranks: bool, needs_openmpi: bool, has_driver: bool) -> Engine:
        engine = str.__new__(cls, name)
        engine._value_ = name
        engine.starts_ranks, engine.needs_openmpi, engine.has_driver = starts_ranks, needs_openmpi, has_driver
        return engine

    @classmethod
    def of(cls, where: str, name: str) -> Engine:
        """The engine called `name`. Raises UserError if there is none; `where` names the option."""
        for engine in cls:
            if engine == name:
                return engine
        raise UserError(where, f"{name!r} is not an engine", allowed=", ".join(cls))
