"""Checkpoints of one state file each, as `ddp` of version 0.1.0 wrote them: rank 0 holds the whole state.

    step-00001000/state.pt         the state (state_file.py)
    step-00001000/manifest.json    {"format", "step", "written", "files": {"state.pt": {"size", "sha256"}}}
    latest                         the name of the newest folder

A folder appears complete: it is written under another name and renamed. It can be damaged later, for example by an
interrupted copy to S3, which has no rename. So size and hash are checked before a checkpoint is used, and the newest
undamaged one is used.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TypedDict

import torch

from algorun_train.common.files import sync_folder, write, write_json, write_text

from .state_file import FORMAT, State

STATE, MANIFEST, LATEST = "state.pt", "manifest.json", "latest"


@dataclass(frozen=True, slots=True)
class SingleFileStore:
    """The checkpoints below `root`; the newest `keep` are kept. Call `save` and `newest` on rank 0 only."""

    root: Path
    keep: int

    def save(self, step: int, state: State) -> Path:
        """Writes `state` as the checkpoint of `step`; returns its folder. Raises OSError; then no unfinished file is left."""
        self.root.mkdir(parents=True, exist_ok=True)
        folder = self.root / f"step-{step:08d}"
        aside = self.root / f".{folder.name}.{os.getpid()}.tmp"
        shutil.rmtree(aside, ignore_errors=True)
        try:
            aside.mkdir()
            written = write(aside / STATE, lambda file: torch.save(state, file))
            files = {STATE: {"size": written.size, "sha256": written.sha256}}
            write_json(aside / MANIFEST, {"format": FORMAT, "step": step, "written": time.time(), "files": files})
            shutil.rmtree(folder, ignore_errors=True)  # left by an earlier run that was not resumed
            aside.rename(folder)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        sync_folder(self.root)
        write_text(self.root / LATEST, folder.name + "\n")
        self._prune(folder)
        return folder

    def newest(self, warn: Callable[[str], None]) -> tuple[Path, bytes] | None:
        """The newest undamaged checkpoint: its folder and the bytes of its state. `warn` gets a text for each damaged one."""
        for folder in self._by_age():
            try:
                return folder, _verified(folder)
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                warn(f"checkpoint {folder} is not complete and is passed over: {error}")
        return None

    def _by_age(self) -> Iterator[Path]:
        """The folder that `latest` names, then the others, newest first by the time they were written."""
        # A folder with shards (shards.py) belongs to a job in stages: it is neither read nor removed here.
        folders = [f for f in self.root.glob("step-*") if f.is_dir() and not any(f.glob("part-*"))]
        try:
            pointed = (self.root / LATEST).read_text().strip()
        except (OSError, ValueError):  # absent, or no text
            pointed = ""
        return iter(sorted(folders, key=lambda f: (f.name == pointed, _written(f), f.name), reverse=True))

    def _prune(self, newest: Path) -> None:
        for folder in [f for f in self._by_age() if f != newest][self.keep - 1 :]:
            shutil.rmtree(folder, ignore_errors=True)
        for torn in self.root.glob(".step-*.tmp"):  # left by a writer that was killed
            shutil.rmtree(torn, ignore_errors=True)


class _File(TypedDict):
    size: int
    sha256: str


class _Manifest(TypedDict):
    format: int
    step: int
    written: float
    files: dict[str, _File]


def _manifest(folder: Path) -> _Manifest:
    """The manifest as `save` wrote it. A damaged file may hold other values: callers catch KeyError and TypeError."""
    manifest: _Manifest = json.loads((folder / MANIFEST).read_text())
    return manifest


def _written(folder: Path) -> float:
    try:
        return float(_manifest(folder)["written"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0.0


def _verified(folder: Path) -> bytes:
    """The bytes of the state. Raises an error if the folder is damaged or is no checkpoint."""
    promised = _manifest(folder)["files"][STATE]
    data = (folder / STATE).read_bytes()
    if len(data) != promised["size"]:
        raise ValueError(f"{STATE} has {len(data)} bytes, not {promised['size']}")
    if sha256(data).hexdigest() != promised["sha256"]:
        raise ValueError(f"{STATE} differs from its checksum")
    return data
