"""The files of one checkpoint of a script: written by the ranks of a pipeline, read by any number of ranks.

    path/newest                       the tag of the newest checkpoint, written last
    path/{tag}_partial/model_0_of_2.pt, optimizer_0_of_2.pt, ..   one for each rank of a pipeline
    path/{tag}_partial/user_content.pt
    path/{tag}, path/user_content_{tag}   where the checkpoint is a full one

With sharded data parallelism there is one for each rank of a replica: model_0_of_2_shares.pt, ..

A part is a dictionary: `state` is what local_state_dict() returned, `save` the same number in all parts of one save.
A full checkpoint is {"model": state_dict, "optimizer": state_dict}; a bare state_dict of a model is read too.
"""

from __future__ import annotations

import contextlib
import functools
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from algorun_smdistributed.ranks import host_files
from algorun_smdistributed.script_types import Given, Result, StateDict
from algorun_smdistributed.signatures.optimizer_state import merged
from algorun_smdistributed.torch_files.safe_files import read_safely, warn_of_unreadable, write
from algorun_train.common.errors import UserError
from algorun_train.common.files import writable

from .context import Context
from .sharded_state import merged_shares
from .state_keys import BUILD, PARTIAL, without_keys

PARTS = "_partial"
NEWEST = "newest"
CONTENT = "user_content"
KINDS = ("model", "optimizer")
SUFFIX = "_shares"
SAVE, RESUME = "smp.save_checkpoint", "smp.resume_from_checkpoint"
_PART = re.compile(r"(model|optimizer)_(\d{1,9})_of_(\d{1,9}(?:_shares)?)\.pt")


class CheckpointFolder:
    """The checkpoint with one tag in a folder; `tag` None: the newest. UserError, equal on all ranks, for a wrong tag."""

    def __init__(self, context: Context, where: Path, tag: Given) -> None:
        self._context, self._where = context, where
        self._tag = _newest(context, where / NEWEST) if tag is None else _checked(tag)
        self._number, count = context.number, len(context.holders.ranks)
        self._of = f"{count}{SUFFIX}" if context.mesh else f"{count}"  # how this job's files are called
        self._parts = where / f"{self._tag}{PARTS}"

    # -- writing, on all ranks that hold one model --------------------------------------------------------------------

    def write_parts(self, things: Mapping[str, Given], content: Given, kept: int | None) -> None:
        """This rank's part of each of `things`, which has local_state_dict(); keeps `kept` folders of parts, or all.

        UserError on all of them where one cannot write.
        """
        folder, number = self._parts, self._number
        save = self._context.holders.gathered(secrets.token_hex(8), SAVE)[0]

        def parts() -> None:
            if number == 0:
                warn_of_unreadable(f"{SAVE}: {CONTENT}", content)
            writable(folder, "folder", "another path")
            for kind, thing in things.items():
                part = {"save": save, "state": thing.local_state_dict()}
                self._write(folder / f"{kind}_{number}_of_{self._of}.pt", part)

        def rest() -> None:
            # Parts of a save under the same tag on another number of ranks, or with more in it, are none of this one's.
            for file in folder.glob("*.pt"):
                named = _PART.fullmatch(file.name)
                if named and (named[3] != self._of or named[1] not in things):
                    file.unlink(missing_ok=True)
            if number == 0:
                self._write(folder / f"{CONTENT}.pt", {"save": save, "content": content})
            if kept is not None:
                prune(self._where, folder, kept)

        self._context.holders.on_all(parts, SAVE)
        self._context.holders.on_all(rest, SAVE)
        self._point()

    def write_whole(self, things: Mapping[str, Given], content: Given) -> None:
        """One file with the state_dict() of each of `things`. UserError on all of them where it cannot be written."""
        states = {kind: thing.state_dict(gather_to_rank0=True) for kind, thing in things.items()}

        def both() -> None:
            if self._number == 0:
                warn_of_unreadable(f"{SAVE}: {CONTENT}", content)
                writable(self._where, "folder", "another path")
                self._write(self._where / f"{CONTENT}_{self._tag}", content)
                self._write(self._where / self._tag, states)

        self._context.holders.on_all(both, SAVE)
        self._point()

    def _write(self, path: Path, value: Given) -> None:
        write(path, self._context.comm.rank, functools.partial(torch.save, value))

    def _point(self) -> None:
        """Only now, when all of it is there, is it the newest."""
        if self._number == 0:
            text = f"{self._tag}\n".encode()
            write(self._where / NEWEST, self._context.comm.rank, lambda file: file.write(text))

    # -- reading, on all ranks of the job -----------------------------------------------------------------------------

    def read_whole(self) -> tuple[StateDict, Given]:
        """The states by kind, and the user's content. UserError, equal on all ranks, where there is no such file."""
        states = dict(self._read(self._where / self._tag))
        if not isinstance(states.get("model"), Mapping):
            states = {"model": states}
        content = self._read(self._where / f"{CONTENT}_{self._tag}", keys=None, needed=False)
        return states, content

    def read_parts(self, kinds: tuple[str, ...]) -> tuple[StateDict, Given]:
        """The states of this rank (or of the whole model, where the parts are of other ranks), and the user's content.

        UserError, equal on all ranks, where there is no whole checkpoint.
        """
        folder = self._parts
        names = host_files.names(self._context.comm, folder, "*.pt")
        counts = {match[3] for name in names if (match := _PART.fullmatch(name))}
        if f"{CONTENT}.pt" not in names or len(counts) > 1:
            raise UserError(
                f"{RESUME}: {folder} holds no whole checkpoint; found: {', '.join(names) or 'nothing'}; "
                "fix: another tag, or partial=False for a full one"
            )
        last = self._read(folder / f"{CONTENT}.pt", keys=("save", "content"))
        there = [kind for kind in kinds if any(name.startswith(f"{kind}_") for name in names)]
        states = {kind: self._state(kind, next(iter(counts)), last["save"]) for kind in there}
        return states, last["content"]

    def _state(self, kind: str, of: str, save: str) -> StateDict:
        """The state of this rank, or of the whole model, from the parts of one kind, whose names end with `of`."""
        same, count = of == self._of, int(of.removesuffix(SUFFIX))
        wanted = [self._number] if same else range(count)
        parts: dict[int, Given] = {}
        for number in range(count):
            file = self._parts / f"{kind}_{number}_of_{of}.pt"
            part = self._read(file, keys=("save", "state"), wanted=number in wanted)
            if number in wanted:
                parts[number] = part
        if any(self._context.comm.gather(any(part["save"] != save for part in parts.values()))):
            raise UserError(
                f"{RESUME}: the files in {self._parts} are of two saves, of which one was not finished; fix: another tag"
            )
        found: list[StateDict] = [part["state"] for part in parts.values()]
        if same:
            return found[0]
        if of.endswith(SUFFIX):
            return merged_shares(found)
        if kind == "optimizer":
            return merged([without_keys(state) for state in found], BUILD)
        return {key: value for state in found for key, value in state.items() if key != PARTIAL}

    def _read(self, file: Path, keys: tuple[str, ...] | None = (), wanted: bool = True, needed: bool = True) -> Result:
        """What the file holds, wherever it lies, if it is `wanted` on this rank. On all ranks.

        It is a dictionary with these keys, unless they are None. None if nobody has it and it is not `needed`.
        """
        missing = f"{RESUME}: no file {file}; fix: another path or tag, or another `partial`" if needed else None
        return host_files.read_on_hosts(self._context.comm, file, lambda file: _content(file, keys), wanted, missing)


def _content(file: Path, keys: tuple[str, ...] | None) -> Result:
    value = read_safely(file, "smp.load", map_location="cpu")
    if keys is None or (isinstance(value, Mapping) and value.keys() >= set(keys)):
        return value
    needs = f" with {' and '.join(keys)}" if keys else " of weights"
    raise UserError(f"{RESUME}: {file} holds no dictionary{needs}; fix: another path or tag")


def prune(where: Path, newest: Path, kept: int) -> None:
    """Removes the oldest folders of parts. Ranks that share the disk may do so at the same time."""

    def written(folder: Path) -> float:
        times = [0.0]
        with contextlib.suppress(OSError):  # another rank is removing it
            times += [file.stat().st_mtime for file in folder.glob("*.pt")]
        return max(times)

    others = sorted((f for f in where.glob(f"*{PARTS}") if f != newest and f.is_dir()), key=written)
    for folder in others[: max(len(others) + 1 - kept, 0)]:
        shutil.rmtree(folder, ignore_errors=True)


def _newest(context: Context, file: Path) -> str:
    """The tag of the newest checkpoint, of the first rank that sees the file: hosts may have saved unequally often. On all
    ranks, and the same on all."""
    fix = "fix: another path, or give a tag"
    holders = [rank for rank, is_there in enumerate(context.comm.gather(file.is_file())) if is_there]
    if not holders:
        raise UserError(f"{RESUME}: no file {file}; {fix}")

    def tag() -> str:
        try:
            return _checked(file.read_text(encoding="utf-8").strip())
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{RESUME}: {file} cannot be read ({error}); {fix}") from None

    return context.comm.from_rank(holders[0], tag)


def _checked(tag: Given) -> str:
    if not isinstance(tag, str) or not tag or "/" in tag or "\0" in tag or tag.startswith(".") or tag == NEWEST:
        raise UserError(
            f'checkpoint: tag = {tag!r}; allowed: the name of a file, other than "newest", that begins with no dot; '
            "fix: such as the step"
        )
    return tag
