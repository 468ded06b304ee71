"""Checkpoints of the bundled entrypoints, for programs of one's own; docs/checkpoints.md tells what they are.

from algorun.checkpoints import model_state

model.load_state_dict(model_state(Path("checkpoints")))
"""

from __future__ import annotations

from algorun_train.checkpoint.shards import model_state

__all__ = ["model_state"]
