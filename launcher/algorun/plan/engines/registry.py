"""Each engine and the function that plans its processes. CONTRIBUTING.md says how to add one."""

from __future__ import annotations

from collections.abc import Callable

from algorun.job.engine import Engine

from .base import Pieces, Wanted


def starter(engine: Engine) -> Callable[[Wanted], Pieces]:
    """What plans the processes of an engine. Imports this engine alone: every job waits for its start."""
    match engine:
        case Engine.NATIVE:
            return no_processes
        case Engine.TORCHRUN:
            from .torchrun import pieces
        case Engine.MPIRUN:
            from .mpirun import pieces
        case Engine.RAY:
            from .ray import pieces
    return pieces


def no_processes(wanted: Wanted) -> Pieces:
    """Of the native engine: each host's supervisor starts its ranks itself."""
    return Pieces()
