"""The job's session: its ranks, how they are laid out, and the one model and optimizer of the script."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from algorun import training

from . import messages

_session: Session | None = None


class Session:
    """What `init` has found and made."""

    def __init__(self, text: str) -> None:
        config, self.wishes = training.load("mp_parameters").apply(
            training.load("config").PipelineConfig(mp_parameters=text, batch_size=64)
        )
        self.config = config
        mesh = training.load("mesh")
        self.mesh = mesh.enter(mesh.read_world(os.environ))
        self.layout = training.load("layout").lay_out(config, self.wishes, self.mesh.size)
        self.axes = training.load("parallel.axes").join(self.layout.grid, self.mesh.rank, self.mesh.device)
        messages.connect(self.mesh)
        self.model: Any = None
        self.optimizer: Any = None
        self.partitioned = False
        self._callbacks: list[Callable[[], None]] = []

    def on_partition(self, callback: Callable[[], None]) -> None:
        """Calls it once the model is partitioned, at once where it is."""
        if self.partitioned:
            callback()
        else:
            self._callbacks.append(callback)

    def partition_is_done(self) -> None:
        self.partitioned = True
        for callback in self._callbacks:
            callback()


def init(config: dict[str, Any] | None = None) -> None:
    """Joins the ranks."""
    global _session
    if _session is None:
        text = os.environ.get("SM_HP_MP_PARAMETERS", "{}")
        _session = Session(text)


def is_initialized() -> bool:
    return _session is not None


def session() -> Session:
    """The session. UserError before `init`."""
    if _session is None:
        raise training.load("errors").UserError("smdistributed: not initialised; fix: call smp.init() first")
    return _session
