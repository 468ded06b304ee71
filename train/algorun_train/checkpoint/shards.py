"""Checkpoints of several parts, one for each stage of a pipeline, that need not lie on one disk.

    step-00001000/part-0000-of-0002.pt      weights and optimizer state of one stage, by the model's own names
    step-00001000/part-0000-of-0002.json    {"format", "step", "written", "size", "sha256"} of it

Each rank that holds a stage writes to its own host's folder. A checkpoint is complete when all of its parts are
somewhere: on a shared disk, on separate ones, or together in one copy of the S3 prefix to which hosts sync theirs.
Parts belong together when they have step, number of parts and `written` in common, rank 0's time of this save: an
earlier run's part of the same step is never taken for one of this run. All state is by name, so a checkpoint fits any
number of stages, and the whole model: see `model_state`.
"""

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from algorun_train.files import sync_folder, write, write_json

from .store import FORMAT, read_state, unusable

FOLDER = re.compile(r"step-([0-9]{8,})")
FILE = re.compile(r"part-([0-9]{4,})-of-([0-9]{4,})\.(?:pt|json)")
# What reading a file raises that is no manifest of a part.
NO_MANIFEST = (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError)


class Save(NamedTuple):
    """What the parts of one checkpoint have in common. The order is the age: a run that began anew has fewer steps."""

    written: float
    step: int
    parts: int

    @property
    def folder(self) -> str:
        return f"step-{self.step:08d}"


@dataclass(frozen=True, slots=True)
class Part:
    """One part as its manifest promises it."""

    save: Save
    number: int
    size: int
    sha256: str

    @property
    def file(self) -> str:
        return f"part-{self.number:04d}-of-{self.save.parts:04d}.pt"


@dataclass(frozen=True, slots=True)
class PartStore:
    """The parts in this rank's folder; the newest `keep` complete checkpoints stay."""

    root: Path
    keep: int

    def path(self, part: Part) -> Path:
        return self.root / part.save.folder / part.file

    def write(self, save: Save, number: int, state: dict[str, Any]) -> Part:
        """Writes `state` (tensors, numbers, texts, lists, dictionaries) as one part of a checkpoint."""
        path = self.path(Part(save, number, 0, ""))
        path.parent.mkdir(parents=True, exist_ok=True)
        sync_folder(self.root)
        manifest = path.with_suffix(".json")
        manifest.unlink(missing_ok=True)  # an earlier run's, which must not vouch for what comes now
        written = write(path, lambda file: torch.save(state, file))
        promise = {"format": FORMAT, "step": save.step, "written": save.written}
        write_json(manifest, promise | {"size": written.size, "sha256": written.sha256})
        return Part(save, number, written.size, written.sha256)

    def found(self) -> tuple[list[Part], list[str]]:
        """What this folder's manifests promise, and a complaint for each manifest that cannot be read."""
        parts, complaints = [], []
        for path in self._files("*.json"):
            try:
                parts.append(_promised(path))
            except NO_MANIFEST as error:
                complaints.append(f"checkpoint part {path.with_suffix('.pt')} is passed over: its manifest: {error}")
        return parts, complaints

    def fault(self, part: Part) -> str | None:
        """What is wrong with the file of `part`, in words; None when it is what was written. Reads all of it."""
        try:
            with self.path(part).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                size = file.tell()
        except OSError as error:
            return f"{part.file} cannot be read: {error.strerror}"
        if size != part.size:
            return f"{part.file} has {size} bytes, not {part.size}"
        return None if digest == part.sha256 else f"{part.file} differs from its checksum"

    def read(self, part: Part) -> dict[str, Any]:
        """The state of a part, on the CPU. UserError for what `write` has not written."""
        path = self.path(part)
        try:
            with path.open("rb") as file:
                return read_state(file, str(path))
        except OSError as error:
            raise unusable(str(path), f"{error.strerror}") from None

    def prune(self, kept: Collection[Save]) -> None:
        """Removes all other parts of this folder, and what killed writers left. Only while nobody writes; other ranks that
        share the folder may prune at the same time."""
        for path in [*self._files("*.json"), *self._files("*.pt")]:
            try:
                stays = _promised(path.with_suffix(".json")).save in kept
            except NO_MANIFEST:
                stays = False
            if not stays:
                path.unlink(missing_ok=True)
        for folder in self._folders():
            try:
                for torn in folder.glob(".part-*.tmp"):
                    torn.unlink(missing_ok=True)
                folder.rmdir()
            except OSError:
                pass  # something stays in it, or another rank has removed it

    def _folders(self) -> list[Path]:
        return [f for f in self.root.glob("step-*") if FOLDER.fullmatch(f.name) and f.is_dir()]

    def _files(self, pattern: str) -> Iterator[Path]:
        for folder in self._folders():
            try:
                paths = sorted(folder.glob(pattern))
            except OSError:  # another rank has removed it
                continue
            yield from (path for path in paths if FILE.fullmatch(path.name))


def _promised(manifest: Path) -> Part:
    """Raises one of NO_MANIFEST for what is no manifest of its part."""
    told = json.loads(manifest.read_text())
    names = FILE.fullmatch(manifest.name)
    folder = FOLDER.fullmatch(manifest.parent.name)
    if names is None or folder is None:
        raise ValueError("not the name of a part")
    number, parts, step = int(names[1]), int(names[2]), int(folder[1])
    if told["format"] != FORMAT:
        raise ValueError(f"format {told['format']}, this version reads {FORMAT}")
    written = float(told["written"])
    if not (number < parts and told["step"] == step and type(told["size"]) is int and math.isfinite(written)):
        raise ValueError("it contradicts itself")
    return Part(Save(written, step, parts), number, told["size"], str(told["sha256"]))


def holders(rows: Sequence[Sequence[Part]]) -> dict[Save, dict[int, list[int]]]:
    """Who has what: for each checkpoint, newest first, the ranks that hold each of its parts. Row r is rank r's."""
    union: dict[Save, dict[int, list[int]]] = {}
    for rank, parts in enumerate(rows):
        for part in parts:
            union.setdefault(part.save, {}).setdefault(part.number, []).append(rank)
    return {save: union[save] for save in sorted(union, reverse=True)}


def lacking(save: Save, found: Collection[int]) -> list[int]:
    """The parts of a checkpoint that nobody has."""
    return [number for number in range(save.parts) if number not in found]


def newest_complete(rows: Sequence[Sequence[Part]], keep: int) -> list[Save]:
    """The newest `keep` of the checkpoints that are complete over all rows, newest first."""
    return [save for save, found in holders(rows).items() if not lacking(save, found)][:keep]


def model_state(root: Path) -> dict[str, torch.Tensor]:
    """The whole model's state dict from a folder of checkpoints that holds all parts of one: the newest whole one's.

    For `model.load_state_dict(model_state(Path("checkpoints")))` in a user's own program, with the model unsplit.
    UserError where no checkpoint is whole. Hosts without a shared disk have some parts each: give the S3 prefix to
    which they were synced, or copy their folders into one.
    """
    store = PartStore(root, 1)
    found, complaints = store.found()
    for save in newest_complete([found], len(found)):
        parts = sorted((part for part in found if part.save == save), key=lambda part: part.number)
        faults = [fault for part in parts if (fault := store.fault(part))]
        if not faults:
            return {name: tensor for part in parts for name, tensor in store.read(part)["model"].items()}
        complaints += faults
    why = "; ".join(complaints[:3]) or "no checkpoint there has all of its parts"
    raise unusable(str(root), why)
