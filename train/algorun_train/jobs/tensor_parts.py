"""Option --tp: what is checked before a folder's model is split between the ranks of a tensor group."""

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

import torch

from algorun_train.common.errors import UserError
from algorun_train.models.folder_classes import skeleton
from algorun_train.models.folder_config import ModelFolder
from algorun_train.models.small_copy import count
from algorun_train.models.tensor_check import check_parts
from algorun_train.models.tensor_plan import experts_line, plans_of, with_split_logits
from algorun_train.options.shard_layout import hosts_of_a_group, several_hosts
from algorun_train.parallel.shard.sharded_model import TensorAxis
from algorun_train.ranks.communicator import Communicator


def checked_plan(
    folder: ModelFolder, classes: Sequence[str] | None, axis: TensorAxis, comm: Communicator
) -> dict[str, str]:
    """transformers' plan for the model, tried on a small copy by all ranks. Call it on all ranks. Raises UserError, the same on all
    ranks, if there is none, the ranks cannot share the layers, or the plan gives another result than one process. Each rank gets
    the logits of some words if the plan allows it, else all."""
    plans = comm.on_all(lambda: plans_of(folder, classes, axis.ranks))
    model, plan = skeleton(folder, classes), plans[0]
    if folder.tokens:
        plan, line = comm.on_all(lambda: _tried(folder, model, plans, axis, comm.device))
        for each in filter(None, (line, experts_line(model, plan, axis.ranks))):
            comm.say(each)
    ranks = _ranks_of_hosts(comm)
    if (hosts := hosts_of_a_group(axis.ranks, ranks)) > 1:
        comm.say(several_hosts(axis.ranks, ranks, hosts))
    return plan


def _tried(
    folder: ModelFolder, model: Any, plans: Sequence[dict[str, str]], axis: TensorAxis, device: torch.device
) -> tuple[dict[str, str], str | None]:
    """The first of the plans that gives the result of one process, if it can with logits of which each rank has some words. If no
    copy of the model can be tried, the first plan, and a line for the log. Raises UserError if all of them fail. Any: a model of
    transformers."""
    *others, last = (each for plan in plans for each in (with_split_logits(model, plan), plan) if each)
    weights = count(model)
    for each in others:
        with contextlib.suppress(UserError):
            if check_parts(folder, each, weights, axis, device) is None:
                return each, None
    line = check_parts(folder, last, weights, axis, device)
    return plans[0] if line else last, line


def refuse_embedded(model: str, ranks: int) -> UserError:
    """The error of a model that has no plan because it is no folder's."""
    return UserError(
        f"option --tp: {ranks}, with the embedded {model}; allowed: with a Hugging Face folder; fix: give --model FOLDER, or leave "
        "--tp out"
    )


def _ranks_of_hosts(comm: Communicator) -> list[int]:
    """How many ranks each host has, in the order of hosts. Call it on all ranks."""
    firsts = [rank for rank, (place,) in enumerate(comm.exchange([float(comm.world.local_rank)])) if place == 0]
    return [end - begin for begin, end in itertools.pairwise([*firsts, comm.size])]
