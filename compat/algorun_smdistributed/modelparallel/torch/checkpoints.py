"""smp.save_checkpoint and smp.resume_from_checkpoint: a folder of parts, or one file, and the user's content."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from algorun_smdistributed.modelparallel.core.checkpoint_folder import KINDS, CheckpointFolder
from algorun_smdistributed.script_types import Given, Result
from algorun_train.common.errors import UserError

from .model import DistributedModel
from .optimizer import DistributedOptimizer
from .session import session


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
    """Writes a checkpoint of `model` and `optimizer`, of those that are given. On all ranks, or all with dp_rank 0; with
    sharded data parallelism on all ranks.

    Only ranks with dp_rank 0 write, or those of the first replica of shares. `translate_if_full` has no effect: the
    names of the weights are the model's own. Warns of a `user_content` that torch.load will refuse, and so
    resume_from_checkpoint. Raises UserError for other arguments, and on all writers where one cannot write.
    """
    context = session().context
    folder, kept = CheckpointFolder(context, Path(path), "" if tag is None else tag), num_kept_partial_checkpoints
    if kept is not None and (isinstance(kept, bool) or not isinstance(kept, int) or kept < 1):
        raise UserError(
            f"smp.save_checkpoint: num_kept_partial_checkpoints = {kept!r}; allowed: whole numbers from 1 on, or None; "
            "fix: give one"
        )
    if not isinstance(model, DistributedModel | None):
        raise UserError(f"smp.save_checkpoint: model is a {type(model).__name__}; fix: give the smp.DistributedModel")
    if not isinstance(optimizer, DistributedOptimizer | None):
        raise UserError(
            f"smp.save_checkpoint: optimizer is a {type(optimizer).__name__}; fix: give the smp.DistributedOptimizer"
        )
    if not context.writes:
        return
    things = {kind: thing for kind, thing in zip(KINDS, (model, optimizer), strict=True) if thing is not None}
    if partial:
        folder.write_parts(things, user_content, kept)
    else:
        folder.write_whole(things, user_content)


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
    `load_sharded_optimizer_state=False` leaves an optimizer out whose state is sharded. Raises UserError, equal on
    all ranks, where there is no whole checkpoint.
    """
    now = session()
    folder, load_optimizer = CheckpointFolder(now.context, Path(path), tag), load_optimizer and load_optimizer_states
    if now.context.mesh is not None:
        load_optimizer = load_optimizer and load_sharded_optimizer_state
    if partial:
        states, content = folder.read_parts(KINDS if load_optimizer else KINDS[:1])
    else:
        states, content = folder.read_whole()
        if translate_function is not None:
            states["model"] = translate_function(states["model"])
    if "model" in states:
        now.when_model_is_there(lambda model: model.load_state_dict(states["model"], strict=strict))
    if load_optimizer and "optimizer" in states:
        now.when_optimizer_is_there(lambda optimizer: optimizer.load_state_dict(states["optimizer"]))
    return content
