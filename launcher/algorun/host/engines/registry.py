"""Each engine and the class of its work on a host."""

from __future__ import annotations

from algorun.host.ranks.rank_port import LONGEST_FOR_RAY, LONGEST_TEMPORARY
from algorun.host.tools import Tools
from algorun.job.config import JobConfig
from algorun.job.engine import Engine

from .engine import EngineAtWork


def at_work(tools: Tools, config: JobConfig) -> EngineAtWork:
    """The job's engine for one attempt on this host. Imports this engine alone: every job waits for its start."""
    match config.launch.engine.value:
        case Engine.NATIVE:
            return EngineAtWork(tools, config)
        case Engine.TORCHRUN:
            from .rank_starter import RankStarter

            return RankStarter(tools, config)
        case Engine.MPIRUN:
            from .mpirun import MpirunAtWork

            return MpirunAtWork(tools, config)
        case Engine.RAY:
            from .ray.engine import RayAtWork

            return RayAtWork(tools, config)


def longest_temporary(engine: Engine) -> int:
    """The most characters that the folder for sockets may have before the engine's own sockets are too long."""
    return LONGEST_FOR_RAY if engine is Engine.RAY else LONGEST_TEMPORARY
