"""Each engine and the function that plans its processes. CONTRIBUTING.md says how to add one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from algorun.job.engine import Engine

from . import mpirun, native, ray, torchrun
from .base import Pieces, Wanted

STARTERS: Mapping[Engine, Callable[[Wanted], Pieces]] = {
    Engine.NATIVE: native.pieces,
    Engine.TORCHRUN: torchrun.pieces,
    Engine.MPIRUN: mpirun.pieces,
    Engine.RAY: ray.pieces,
}
