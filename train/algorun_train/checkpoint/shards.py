"""Checkpoints of several shards, as `pipeline` writes them: one shard for each stage. The shards may be on several disks.

    step-00001000/part-0000-of-0002.pt      weights and optimizer state of one stage, by the uncut model's names
    step-00001000/part-0000-of-0002.json    manifest: {"format", "step", "written", "size", "sha256"} of it

Each rank that holds a stage writes to the folder of its own host. A checkpoint is complete if every shard exists on some
host: on a shared disk, on separate disks, or in one copy of the S3 prefix to which all hosts sync. The shards of one
checkpoint agree in step, number of shards and `written` (rank 0's clock when the save began), so a shard of an earlier
run with the same step is never mixed in. All state is by parameter name: a checkpoint can be read into any number of
stages (PipelineCheckpoints), and into the uncut model (`model_state`).
"""

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from algorun_train.common.files import sync_folder, write, write_json

from .state_file import FORMAT, State, read_state, unusable

FOLDER = re.compile(r"step-([0-9]{8,})")
FILE = re.compile(r"part-([0-9]{4,})-of-([0-9]{4,})\.(?:pt|json)")
# What reading a file that is no manifest of a shard raises.
NO_MANIFEST = (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError)


class Save(NamedTuple):
    """What the shards of one checkpoint have in common.

    Ordered by age, not by step: a run that began from scratch is newer and has fewer steps.
    """

    written: float
    step: int
    shards: int

    @property
    def folder(self) -> str:
        return f"step-{self.step:08d}"


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard as its manifest describes it; `size` in bytes."""

    save: Save
    number: int
    size: int
    sha256: str

    @property
    def file(self) -> str:
        return f"part-{self.number:04d}-of-{self.save.shards:04d}.pt"


@dataclass(frozen=True, slots=True)
class ShardStore:
    """The shards in this rank's folder `root`. The newest `keep` complete checkpoints are kept."""

    root: Path
    keep: int

    def path(self, shard: Shard) -> Path:
        return self.root / shard.save.folder / shard.file

    def write(self, save: Save, number: int, state: State) -> Shard:
        """Writes `state` as shard `number` of a checkpoint, its manifest last. A shard without a manifest does not count."""
        path = self.path(Shard(save, number, 0, ""))
        path.parent.mkdir(parents=True, exist_ok=True)
        sync_folder(self.root)
        manifest = path.with_suffix(".json")
        manifest.unlink(missing_ok=True)  # an earlier run's manifest must not describe the new file
        written = write(path, lambda file: torch.save(state, file))
        promise = {"format": FORMAT, "step": save.step, "written": save.written}
        write_json(manifest, promise | {"size": written.size, "sha256": written.sha256})
        return Shard(save, number, written.size, written.sha256)

    def found(self) -> tuple[list[Shard], list[str]]:
        """The shards that this folder's manifests describe, and a warning for each manifest that cannot be read."""
        shards, warnings = [], []
        for path in self._files("*.json"):
            try:
                shards.append(_described(path))
            except NO_MANIFEST as error:
                warnings.append(f"checkpoint shard {path.with_suffix('.pt')} is passed over: its manifest: {error}")
        return shards, warnings

    def fault(self, shard: Shard) -> str | None:
        """How the file of `shard` is damaged, in words; None if it is not. Reads the whole file."""
        try:
            with self.path(shard).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                size = file.tell()
        except OSError as error:
            return f"{shard.file} cannot be read: {error.strerror}"
        if size != shard.size:
            return f"{shard.file} has {size} bytes, not {shard.size}"
        return None if digest == shard.sha256 else f"{shard.file} differs from its checksum"

    def read(self, shard: Shard) -> State:
        """The state of a shard; its tensors are on the CPU. Raises UserError for a file that `write` did not write."""
        path = self.path(shard)
        try:
            with path.open("rb") as file:
                return read_state(file, str(path))
        except OSError as error:
            raise unusable(str(path), f"{error.strerror}") from None

    def prune(self, kept: Collection[Save]) -> None:
        """Removes the shards of all checkpoints except `kept`, and the unfinished files of killed writers.

        Call it only while no rank writes. Ranks that share the folder may call it at the same time.
        """
        for path in [*self._files("*.json"), *self._files("*.pt")]:
            try:
                stays = _described(path.with_suffix(".json")).save in kept
            except NO_MANIFEST:
                stays = False
            if not stays:
                path.unlink(missing_ok=True)
        for folder in self._folders():
            try:
                for unfinished in folder.glob(".part-*.tmp"):
                    unfinished.unlink(missing_ok=True)
                folder.rmdir()
            except OSError:
                pass  # some shards stay, or another rank has removed the folder

    def _folders(self) -> list[Path]:
        return [f for f in self.root.glob("step-*") if FOLDER.fullmatch(f.name) and f.is_dir()]

    def _files(self, pattern: str) -> Iterator[Path]:
        for folder in self._folders():
            try:
                paths = sorted(folder.glob(pattern))
            except OSError:  # another rank has removed the folder
                continue
            yield from (path for path in paths if FILE.fullmatch(path.name))


def _described(manifest: Path) -> Shard:
    """The shard that a manifest describes. Raises one of NO_MANIFEST if the file is not a valid manifest."""
    read = json.loads(manifest.read_text())
    names = FILE.fullmatch(manifest.name)
    folder = FOLDER.fullmatch(manifest.parent.name)
    if names is None or folder is None:
        raise ValueError("not the name of a shard")
    number, shards, step = int(names[1]), int(names[2]), int(folder[1])
    if read["format"] != FORMAT:
        raise ValueError(f"format {read['format']}, this version reads {FORMAT}")
    written = float(read["written"])
    if not (number < shards and read["step"] == step and type(read["size"]) is int and math.isfinite(written)):
        raise ValueError("it contradicts itself")
    return Shard(Save(written, step, shards), number, read["size"], str(read["sha256"]))


def holders(rows: Sequence[Sequence[Shard]]) -> dict[Save, dict[int, list[int]]]:
    """For each checkpoint, newest first: {number of a shard: the ranks that hold it}. `rows[r]` are rank r's shards."""
    union: dict[Save, dict[int, list[int]]] = {}
    for rank, shards in enumerate(rows):
        for shard in shards:
            union.setdefault(shard.save, {}).setdefault(shard.number, []).append(rank)
    return {save: union[save] for save in sorted(union, reverse=True)}


def lacking(save: Save, found: Collection[int]) -> list[int]:
    """The numbers of the shards of a checkpoint that no rank holds."""
    return [number for number in range(save.shards) if number not in found]


def newest_complete(rows: Sequence[Sequence[Shard]], keep: int) -> list[Save]:
    """The newest `keep` checkpoints that all ranks together hold completely, newest first."""
    return [save for save, found in holders(rows).items() if not lacking(save, found)][:keep]


def model_state(root: Path) -> dict[str, torch.Tensor]:
    """The uncut model's state dict from a folder that holds all shards of a checkpoint: the newest undamaged one.

    For a user's own program: `model.load_state_dict(model_state(Path("checkpoints")))`. Without a shared disk each host
    holds only some shards: use a copy of the S3 prefix to which all hosts sync, or copy the hosts' folders into one.
    Raises UserError if no checkpoint is complete and undamaged.
    """
    store = ShardStore(root, 1)
    found, warnings = store.found()
    for save in newest_complete([found], len(found)):
        shards = sorted((shard for shard in found if shard.save == save), key=lambda shard: shard.number)
        faults = [fault for shard in shards if (fault := store.fault(shard))]
        if not faults:
            return {name: tensor for shard in shards for name, tensor in store.read(shard)["model"].items()}
        warnings += faults
    why = "; ".join(warnings[:3]) or "no checkpoint there has all of its shards"
    raise unusable(str(root), why)
