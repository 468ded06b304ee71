"""Checkpoints of the bundled entrypoints, for programs of one's own; docs/checkpoints.md tells what they are.

from algorun.checkpoints import model_state

model.load_state_dict(model_state(Path("checkpoints")))
"""

from __future__ import annotations

from . import training

__all__ = ["model_state"]

model_state = training.load("parts").model_state
