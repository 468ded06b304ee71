"""Reads checkpoints of the bundled entrypoints in your own programs.

    from pathlib import Path
    from algorun.checkpoints import model_state

    model.load_state_dict(model_state(Path("checkpoints")))

docs/checkpoints.md describes the files.
"""

from __future__ import annotations

from algorun_train.checkpoint.shards import model_state

__all__ = ["model_state"]
