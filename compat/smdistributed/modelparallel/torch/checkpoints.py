"""smp.save_checkpoint and smp.resume_from_checkpoint: a folder of parts, or one file, and the user's content.

    path/newest                       the tag of the newest checkpoint, written last
    path/{tag}_partial/model_0_of_2.pt, optimizer_0_of_2.pt, ..   one for each rank of a pipeline
    path/{tag}_partial/user_content.pt
    path/{tag}, path/user_content_{tag}   where the checkpoint is a full one

A part is a dictionary: `state` is what local_state_dict() returned, `save` the same number in all parts of one save.
A full checkpoint is {"model": state_dict, "optimizer": state_dict}; a bare state_dict of a model is read too.
"""

from __future__ import annotations

import functools
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from algorun_train.errors import UserError
from algorun_train.files import writable
from algorun_train.ranks.communicator import Communicator
from smdistributed.script_types import Given, Result, StateDict

from .files import read, warn_of_unreadable, write
from .messages import CPU, gathered
from .optimizer import DistributedOptimizer, merged, when_there
from .session import session
from .state_keys import PARTIAL

PARTS = "_partial"
NEWEST = "newest"
CONTENT = "user_content"
KINDS = ("model", "optimizer")
_PART = re.compile(r"(model|optimizer)_(\d{1,9})_of_(\d{1,9})\.pt")


def save_checkpoint(
    path: str,
    tag: str,
    partial: bool = True,
    model: Given = None,
    optimizer: Given = None,
    user_content: Given = None,
    translate_if_full: bool = True,
    num_kept_partial_checkpoints: int | None = None,
) -> None:
    """Writes a checkpoint of `model` and `optimizer`, of those that are given. On all ranks, or all with dp_rank 0.

    Only ranks with dp_rank 0 write. `translate_if_full` has no effect: the names of the weights are the model's own.
    Warns of a `user_content` that torch.load will refuse, and so resume_from_checkpoint. Raises UserError for other
    arguments, and on all ranks of the pipeline where one cannot write.
    """
    tag, where = _tag(tag), Path(path)
    kept = num_kept_partial_checkpoints
    if kept is not None and (isinstance(kept, bool) or not isinstance(kept, int) or kept < 1):
        raise UserError(
            f"smp.save_checkpoint: num_kept_partial_checkpoints = {kept!r}; allowed: whole numbers from 1 on, or None; "
            "fix: give one"
        )
    now = session()
    if model is not None and model is not now.model:
        raise UserError(f"smp.save_checkpoint: model is a {type(model).__name__}; fix: give the smp.DistributedModel")
    if optimizer is not None and not isinstance(optimizer, DistributedOptimizer):
        raise UserError(
            f"smp.save_checkpoint: optimizer is a {type(optimizer).__name__}; fix: give the smp.DistributedOptimizer"
        )
    if now.axes.dp_rank:
        return
    things = {kind: thing for kind, thing in zip(KINDS, (model, optimizer), strict=True) if thing is not None}
    if partial:
        _save_parts(where, tag, things, user_content, kept)
    else:
        _save_whole(where, tag, things, user_content)


def _save_parts(where: Path, tag: str, things: dict[str, Given], content: Given, kept: int | None) -> None:
    axes, folder = session().axes, where / f"{tag}{PARTS}"
    number, count = axes.pp_rank, session().layout.grid.pp
    save = gathered(secrets.token_hex(8), axes.pp_group, CPU)[0]

    def write_parts() -> None:
        if number == 0:
            warn_of_unreadable(f"smp.save_checkpoint: {CONTENT}", content)
        writable(folder, "folder", "another path")
        for kind, thing in things.items():
            part = {"save": save, "state": thing.local_state_dict()}
            write(folder / f"{kind}_{number}_of_{count}.pt", functools.partial(torch.save, part))

    def write_rest() -> None:
        # Parts of a save under the same tag on another number of ranks, or with more in it, are none of this one's.
        for file in folder.glob("*.pt"):
            named = _PART.fullmatch(file.name)
            if named and (int(named[3]) != count or named[1] not in things):
                file.unlink(missing_ok=True)
        if number == 0:
            write(folder / f"{CONTENT}.pt", lambda file: torch.save({"save": save, "content": content}, file))
        if kept is not None:
            _prune(where, folder, kept)

    _together(write_parts)
    _together(write_rest)
    _point(where, tag)


def _save_whole(where: Path, tag: str, things: dict[str, Given], content: Given) -> None:
    states = {kind: thing.state_dict() for kind, thing in things.items()}  # on all ranks of the pipeline

    def write_both() -> None:
        if session().axes.pp_rank == 0:
            warn_of_unreadable(f"smp.save_checkpoint: {CONTENT}", content)
            writable(where, "folder", "another path")
            write(where / f"{CONTENT}_{tag}", lambda file: torch.save(content, file))
            write(where / tag, lambda file: torch.save(states, file))

    _together(write_both)
    _point(where, tag)


def _point(where: Path, tag: str) -> None:
    """Only now, when all of it is there, is it the newest."""
    if session().axes.pp_rank == 0:
        write(where / NEWEST, lambda file: file.write(f"{tag}\n".encode()))


def _together(work: Callable[[], None]) -> None:
    """Every rank of the pipeline does its share; when one cannot, all raise its UserError."""
    message = None
    try:
        work()
    except UserError as error:
        message = str(error)
    failed = [text for text in gathered(message, session().axes.pp_group, CPU) if text]
    if failed:
        raise UserError(failed[0])


def _prune(where: Path, newest: Path, kept: int) -> None:
    """Removes the oldest folders of parts. Ranks that share the disk may do so at the same time."""

    def written(folder: Path) -> float:
        times = []
        for file in folder.glob("*.pt"):
            try:
                times.append(file.stat().st_mtime)
            except OSError:  # another rank is removing it
                pass
        return max(times, default=0.0)

    others = sorted((f for f in where.glob(f"*{PARTS}") if f != newest and f.is_dir()), key=written)
    for folder in others[: max(len(others) + 1 - kept, 0)]:
        shutil.rmtree(folder, ignore_errors=True)


def resume_from_checkpoint(
    path: str,
    tag: str | None = None,
    partial: bool = True,
    strict: bool = True,
    load_optimizer: bool = True,
    load_sharded_optimizer_state: bool = True,
    translate_function: Callable[[Given], Given] | None = None,
    load_optimizer_states: bool = True,
) -> Result:
    """Loads a checkpoint, the newest where no `tag` is given, and returns its user_content. On all ranks.

    Model and optimizer are those of the script, also when it makes them later. Parts of another number of ranks are put
    together. A host without the files gets them from another one. `translate_function(state)` changes the state of the
    model in a full checkpoint first. `load_optimizer_states` is the older name of `load_optimizer`;
    `load_sharded_optimizer_state` has no effect, as there is no sharded data parallelism. Raises UserError, equal on
    all ranks, where there is no whole checkpoint.
    """
    where, comm = Path(path), session().comm
    tag = comm.from_leader(lambda: _newest(where)) if tag is None else _tag(tag)
    load_optimizer = load_optimizer and load_optimizer_states
    if partial:
        states, content = _read_parts(where / f"{tag}{PARTS}", load_optimizer)
    else:
        states = dict(_from_a_holder(where / tag, comm))
        if not isinstance(states.get("model"), Mapping):
            states = {"model": states}
        if translate_function is not None:
            states["model"] = translate_function(states["model"])
        content = _from_a_holder(where / f"{CONTENT}_{tag}", comm, keys=None, needed=False)
    if "model" in states:
        _into_model(states["model"], strict)
    if load_optimizer and "optimizer" in states:
        when_there(lambda optimizer: optimizer.load_state_dict(states["optimizer"]))
    return content


def _into_model(state: Given, strict: bool) -> None:
    now = session()

    def load() -> None:
        assert now.model is not None  # a model that is partitioned is there
        now.model.load_state_dict(state, strict=strict)

    if now.model is not None:
        load()
    else:
        now.on_partition(load)


def _read_parts(folder: Path, load_optimizer: bool) -> tuple[StateDict, Given]:
    """The states of this rank (or of the whole model, where the parts are of other ranks), and the user's content."""
    comm, axes, ranks = session().comm, session().axes, session().layout.grid.pp
    names = sorted(set().union(*comm.gather([f.name for f in folder.glob("*.pt")] if folder.is_dir() else [])))
    counts = {int(match[3]) for name in names if (match := _PART.fullmatch(name))}
    if f"{CONTENT}.pt" not in names or len(counts) > 1:
        raise UserError(
            f"smp.resume_from_checkpoint: {folder} holds no whole checkpoint; found: {', '.join(names) or 'nothing'}; "
            "fix: another tag, or partial=False for a full one"
        )
    file = folder / f"{CONTENT}.pt"
    last = _from_a_holder(file, comm, keys=("save", "content"))
    count = next(iter(counts), 0)
    states: StateDict = {}
    for kind in KINDS[: 2 if load_optimizer else 1]:
        if not any(name.startswith(f"{kind}_") for name in names):
            continue
        wanted = [axes.pp_rank] if count == ranks else list(range(count))
        parts = {}
        for number in range(count):
            file = folder / f"{kind}_{number}_of_{count}.pt"
            part = _from_a_holder(file, comm, keys=("save", "state"), read_it=number in wanted)
            if number in wanted:
                parts[number] = part
        mixed = any(part["save"] != last["save"] for part in parts.values())
        if any(comm.gather(mixed)):
            raise UserError(
                f"smp.resume_from_checkpoint: the files in {folder} are of two saves, of which one was not finished; "
                "fix: another tag"
            )
        if count == ranks:
            states[kind] = parts[axes.pp_rank]["state"]
        elif kind == "optimizer":
            states[kind] = merged([part["state"] for part in parts.values()])
        else:
            states[kind] = {k: v for part in parts.values() for k, v in part["state"].items() if k != PARTIAL}
    return states, last["content"]


def _from_a_holder(
    file: Path, comm: Communicator, keys: tuple[str, ...] | None = (), read_it: bool = True, needed: bool = True
) -> Result:
    """What the file holds; where a rank does not see it, the first rank that does reads it for all. On all ranks.

    It is a dictionary with these keys, unless they are None. Returns None where this rank does not `read_it`, and where
    nobody has it and it is not `needed`.
    """
    rows = comm.gather((read_it, file.is_file()))
    holders = [rank for rank, (_, there) in enumerate(rows) if there]
    if not holders:
        if not needed:
            return None
        raise UserError(f"smp.resume_from_checkpoint: no file {file}; fix: another path or tag, or another `partial`")
    if any(wants and not there for wants, there in rows):
        found = comm.from_rank(holders[0], lambda: _dictionary(file, keys))
        return found if read_it else None
    return comm.on_all(lambda: _dictionary(file, keys) if read_it else None)


def _dictionary(file: Path, keys: tuple[str, ...] | None) -> Result:
    value = read(file, map_location="cpu")
    if keys is None or (isinstance(value, Mapping) and value.keys() >= set(keys)):
        return value
    needs = f" with {' and '.join(keys)}" if keys else " of weights"
    raise UserError(f"smp.resume_from_checkpoint: {file} holds no dictionary{needs}; fix: another path or tag")


def _newest(where: Path) -> str:
    try:
        return _tag((where / NEWEST).read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"smp.resume_from_checkpoint: {where / NEWEST} cannot be read ({error}); fix: another path, or give a tag"
        ) from None


def _tag(tag: Given) -> str:
    if not isinstance(tag, str) or not tag or "/" in tag or "\0" in tag or tag.startswith(".") or tag == NEWEST:
        raise UserError(
            f'checkpoint: tag = {tag!r}; allowed: the name of a file, other than "newest", that begins with no dot; '
            "fix: such as the step"
        )
    return tag
