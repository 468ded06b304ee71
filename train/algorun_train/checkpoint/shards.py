"""Checkpoints of several shards, as `pipeline` writes them: one shard for each stage. The shards may be on several disks.

    step-00001000/part-0000-of-0002.pt      weights and optimizer state of one stage, by the uncut model's names
    step-00001000/part-0000-of-0002.json    manifest: {"format", "step", "written", "size", "sha256"} of it

Each rank that holds a stage writes to the folder of its own host. A checkpoint is complete if every shard exists on some
host: on a shared disk, on separate disks, or in one copy of the S3 prefix to which all hosts sync. The shards of one
checkpoint agree in step, number of shards and `written` (rank 0's clock when the save began), so a shard of an earlier
run with the same step is never mixed in. All state is by parameter name: a checkpoint can be read into any number of
stages (PipelineCheckpoints), and into the uncut model (`model_state`).
"""

import contextlib
import hashlib
import math
import os
import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from algorun_train.common.errors import UserError
from algorun_train.common.files import sync_folder, write, write_json
from algorun_train.common.json_text import loads

from .state_file import FORMAT, State, read_state, unusable

FOLDER = re.compile(r"step-([0-9]{8,})")
FILE = re.compile(r"part-([0-9]{4,})-of-([0-9]{4,})\.(?:pt|json)")
# Names that people, tools and other file systems make of a checkpoint's, such as Step-00000008, step-8 and a copy of it.
# SageMaker's agent marks what it uploads with .sagemaker-uploading and .sagemaker-uploaded.
ALMOST = re.compile(r"(?i)step[-_ ]?[0-9]+(?!.*\.(?:tmp|sagemaker-\w+)$).*")
NAMED = 3  # of a list in a message
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

    def check_version(self) -> None:
        """Raises UserError if a newer version of algorun has written a checkpoint here: only that can read it."""
        for path in self._files(".json"):
            try:
                _described(path)
            except NewerFormat as error:
                raise UserError(
                    f"checkpoint shard {path.with_suffix('.pt')} is of a newer version of algorun: {error}; "
                    "fix: an image with that version, or --resume never, or another --checkpoint-dir"
                ) from None
            except NO_MANIFEST:
                pass  # `found` warns

    def found(self) -> tuple[list[Shard], list[str]]:
        """The shards that this folder's manifests describe, and a warning for whatever looks like one and is not."""
        shards, warnings = [], self._strange()
        described = set()
        for path in self._files(".json"):
            described.add(path.with_suffix(".pt"))
            try:
                shards.append(_described(path))
            except NO_MANIFEST as error:
                warnings.append(f"checkpoint shard {path.with_suffix('.pt')} is passed over: its manifest: {error}")
        for path in self._files(".pt"):
            if path not in described:
                warnings.append(f"checkpoint shard {path} is passed over: it has no manifest, so it is not complete")
        return shards, warnings

    def _strange(self) -> list[str]:
        """A warning for each folder of shards that cannot be read, and for names that are almost a checkpoint's."""
        warnings = []
        for folder in self._folders():
            try:
                os.listdir(folder)
            except FileNotFoundError:
                pass  # another rank has removed it
            except OSError as error:
                warnings.append(f"checkpoint {folder} is passed over: it cannot be read: {error.strerror}")
        names = [e.name for e in entries(self.root) if ALMOST.fullmatch(e.name) and not _is_checkpoint(e.name)]
        if names:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            warnings.append(
                f"{', '.join(sorted(names)[:NAMED])}{more} in {self.root}: passed over, no name of a checkpoint; "
                "allowed: step- and the step in 8 digits"
            )
        return warnings

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
        """Removes the shards of all checkpoints except `kept`, and the unfinished files of killed writers. What a newer version
        of algorun has written stays.

        Call it only while no rank writes. Ranks that share the folder may call it at the same time.
        """
        for path in [*self._files(".json"), *self._files(".pt")]:
            try:
                stays = _described(path.with_suffix(".json")).save in kept
            except NewerFormat:
                stays = True
            except NO_MANIFEST:
                stays = False
            if not stays:
                with contextlib.suppress(PermissionError):  # a job that trains need not end for an old file
                    path.unlink(missing_ok=True)
        for folder in self._folders():
            try:
                for unfinished in folder.glob(".part-*.tmp"):
                    unfinished.unlink(missing_ok=True)
                folder.rmdir()
            except OSError:
                pass  # some shards stay, or another rank has removed the folder

    def _folders(self) -> list[Path]:
        return [Path(e.path) for e in entries(self.root) if _is_checkpoint(e.name) and e.is_dir()]

    def _files(self, suffix: str) -> Iterator[Path]:
        """The files with the name of a shard or a manifest."""
        for folder in self._folders():
            try:
                names = sorted(each.name for each in entries(folder) if not each.is_dir())
            except OSError:  # it may not be read (_strange)
                continue
            yield from (folder / name for name in names if name.endswith(suffix) and FILE.fullmatch(name))


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """What lies in a folder, in the order of names; nothing if it does not exist. Raises OSError."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except FileNotFoundError:  # another rank may have removed it
        return []


def _is_checkpoint(name: str) -> bool:
    """Whether this is a checkpoint's name as `Save.folder` makes it: with more zeros it is a copy."""
    number = FOLDER.fullmatch(name)
    return number is not None and name == Save(0.0, int(number[1]), 1).folder


class NewerFormat(ValueError):
    """A newer version of algorun wrote this."""


def _described(manifest: Path) -> Shard:
    """The shard that a manifest describes. Raises one of NO_MANIFEST if the file is not a valid manifest."""
    read: Any = loads(manifest.read_text())  # Any: whatever the file holds
    names = FILE.fullmatch(manifest.name)
    folder = FOLDER.fullmatch(manifest.parent.name)
    if names is None or folder is None:
        raise ValueError("not the name of a shard")
    number, shards, step = int(names[1]), int(names[2]), int(folder[1])
    if read["format"] != FORMAT:
        newer = type(read["format"]) is int and read["format"] > FORMAT
        raise (NewerFormat if newer else ValueError)(f"format {read['format']}, this version reads {FORMAT}")
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
    """The first numbers of the shards of a checkpoint that no rank holds, at most NAMED: a name may promise any number."""
    return list(islice((number for number in range(save.shards) if number not in found), NAMED))


def newest_complete(rows: Sequence[Sequence[Shard]], keep: int, without: Collection[Save] = ()) -> list[Save]:
    """The newest `keep` checkpoints that all ranks together hold completely, newest first, but for those in `without`."""
    return [save for save, found in holders(rows).items() if save not in without and not lacking(save, found)][:keep]


def first_nan(saved: State) -> str:
    """The first tensor of a shard that holds NaN, such as `exp_avg of head.weight`; "" where none does."""
    for name, tensor in saved["model"].items():
        if _has_nan(tensor):
            return str(name)
    for name, values in saved["optimizer"].items():
        for key, value in values.items():
            if isinstance(value, torch.Tensor) and _has_nan(value):
                return f"{key} of {name}"
    return ""


def _has_nan(tensor: torch.Tensor) -> bool:
    # The least value is NaN if any value is; torch.isnan would need a copy.
    return tensor.is_floating_point() and tensor.itemsize > 1 and tensor.numel() > 0 and bool(tensor.amin().isnan())


def model_state(root: Path) -> dict[str, torch.Tensor]:
    """Returns the whole model's state dict, from the newest complete and undamaged checkpoint in a folder.

    A checkpoint that holds NaN is passed over, with a Python warning that names it.

    Call it in any process; it needs no other ranks. The tensors are on the CPU, under the uncut model's own names and in
    its own shapes, whatever the number of stages or shares of the job that saved. Reading executes nothing in the files.

    Args:
        root: the folder that holds the `step-..` folders. It needs all shards of a checkpoint. Without a shared disk each
            host's folder holds only some: use a copy of the S3 prefix to which all hosts sync.

    Raises:
        UserError: if no checkpoint there is complete, undamaged and without NaN; the text names the first faults.
    """
    store = ShardStore(root, 1)
    found, causes = store.found()
    for save in newest_complete([found], len(found)):
        shards = sorted((shard for shard in found if shard.save == save), key=lambda shard: shard.number)
        faults = [fault for shard in shards if (fault := store.fault(shard))]
        if faults:
            causes += faults
            continue
        state: dict[str, torch.Tensor] = {}
        for shard in shards:
            saved = store.read(shard)
            if diverged := first_nan(saved):
                causes.append(
                    f"checkpoint {root / save.folder} is passed over: it holds NaN in {diverged} ({shard.file})"
                )
                warnings.warn(causes[-1], stacklevel=2)
                break
            state |= saved["model"]
        else:
            return state
    why = "; ".join(causes[:3]) or "no checkpoint there has all of its shards"
    raise unusable(str(root), why)
