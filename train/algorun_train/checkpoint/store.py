"""Checkpoints: a folder `step-00001000` with `state.pt` and a manifest of its size and sha256, and a pointer `latest`.

A folder appears by one rename, complete. Still it can be torn later (a full disk, a sync to S3 cut short: S3 has no
rename), so sizes and hashes are checked before one is used, and the newest whole one wins.
"""

import io
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import torch

from algorun_train.errors import UserError
from algorun_train.files import sync_folder, write, write_json, write_text

FORMAT = 1
STATE, MANIFEST, LATEST = "state.pt", "manifest.json", "latest"


@dataclass(frozen=True, slots=True)
class Store:
    """The checkpoints of one run, of which the newest `keep` stay. Only rank 0 calls `save` and `newest`."""

    root: Path
    keep: int

    def save(self, step: int, state: dict[str, Any]) -> Path:
        """Writes `state` (tensors, numbers, texts, lists, dictionaries) as the checkpoint of `step`."""
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
        """The newest whole checkpoint and the bytes of its state; `warn` hears of every torn one passed over."""
        for folder in self._by_age():
            try:
                return folder, _verified(folder)
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                warn(f"checkpoint {folder} is not complete and is passed over: {error}")
        return None

    def _by_age(self) -> Iterator[Path]:
        """The one that `latest` names, then the others, newest first by the time they were written."""
        # Folders with parts are those of a job in pipeline stages (parts.py), which is not ours to read or to remove.
        folders = [f for f in self.root.glob("step-*") if f.is_dir() and not any(f.glob("part-*"))]
        try:
            pointed = (self.root / LATEST).read_text().strip()
        except (OSError, ValueError):  # not there, or not text
            pointed = ""
        return iter(sorted(folders, key=lambda f: (f.name == pointed, _written(f), f.name), reverse=True))

    def _prune(self, newest: Path) -> None:
        for folder in [f for f in self._by_age() if f != newest][self.keep - 1 :]:
            shutil.rmtree(folder, ignore_errors=True)
        for torn in self.root.glob(".step-*.tmp"):  # a writer that was killed
            shutil.rmtree(torn, ignore_errors=True)


def _manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / MANIFEST).read_text())


def _written(folder: Path) -> float:
    try:
        return float(_manifest(folder)["written"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0.0


def _verified(folder: Path) -> bytes:
    promised = _manifest(folder)["files"][STATE]
    data = (folder / STATE).read_bytes()
    if len(data) != promised["size"]:
        raise ValueError(f"{STATE} has {len(data)} bytes, not {promised['size']}")
    if sha256(data).hexdigest() != promised["sha256"]:
        raise ValueError(f"{STATE} differs from its checksum")
    return data


def unpack(data: bytes, where: str) -> dict[str, Any]:
    """The state that `save` was given."""
    return read_state(io.BytesIO(data), where)


def read_state(file: BinaryIO, where: str) -> dict[str, Any]:
    """A state from its file, on the CPU. Nothing in it is executed (weights_only). UserError for anything else."""
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
        if not isinstance(state, dict) or state["format"] != FORMAT:
            found = state["format"] if isinstance(state, dict) else type(state).__name__
            raise ValueError(f"format {found}, this version reads {FORMAT}")
    except Exception as error:  # torch has no one class for what it cannot read
        first = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise unusable(where, first) from None
    return state


def unusable(where: str, why: str) -> UserError:
    return UserError(f"checkpoint {where} cannot be used: {why}; fix: --resume never, or another --checkpoint-dir")


def compatible(saved: dict[str, Any], own: dict[str, Any], where: str) -> None:
    """UserError when the checkpoint was written for another model, other data or another order of samples."""
    differing = [k for k in {**own, **saved} if saved.get(k) != own.get(k)]
    if differing:
        parts = "; ".join(f"{k} is {saved.get(k)!r} there, {own.get(k)!r} here" for k in differing[:4])
        raise UserError(
            f"checkpoint {where} does not fit this job: {parts}; allowed: the same model, data, optimizer and seed; "
            "fix: give the same options, or --resume never, or another --checkpoint-dir"
        )
