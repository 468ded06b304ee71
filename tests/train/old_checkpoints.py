"""Writes checkpoints as `ddp` of version 0.1.0 did, for tests of what reads them."""

import json
import time
from hashlib import sha256
from pathlib import Path

import torch

from algorun_train.checkpoint.single_file import LATEST, MANIFEST, STATE
from algorun_train.checkpoint.state_file import FORMAT, State


def save(root: Path, step: int, state: State) -> Path:
    """Writes `state` as the checkpoint of `step` below `root`; returns its folder."""
    folder = root / f"step-{step:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(state, folder / STATE)
    content = (folder / STATE).read_bytes()
    files = {STATE: {"size": len(content), "sha256": sha256(content).hexdigest()}}
    manifest = {"format": FORMAT, "step": step, "written": time.time(), "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    (root / LATEST).write_text(folder.name + "\n")
    return folder
