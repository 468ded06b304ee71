"""Whether transformers' tensor parallel plan for a folder's model gives the loss and the gradients of one process, tried on a small
copy of the model by the ranks that will train it.

A plan is a table that somebody wrote for a family of models, and nothing in transformers compares what it trains with one process.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from algorun_train.common.errors import UserError
from algorun_train.parallel.shard.sharded_model import Splits, TensorAxis, piece_of, taken
from algorun_train.parallel.shard.split import TensorParts
from algorun_train.parallel.shard.split_logits import SplitLogits

from .folder_classes import make_config, model_class
from .folder_config import ModelFolder
from .one_sequence import one_sequence_a_row
from .small_copy import SMALL, count, small_models
from .tensor_plan import split_model

ROWS, TOKENS = 2, 64  # of the example: as many words as a small vocabulary has, so that each part of it is looked up
# Of a gradient's norm, by the type of the copy. Rounding is below 1e-6 in float64, where some families compute norms in float32,
# and below 1e-4 in float32, in which experts are tried that torch cannot multiply in float64. A wrong sum is 0.1 or more.
FAR = {torch.float64: 1e-4, torch.float32: 1e-2}
IGNORED = -100  # a label that adds nothing; none here is
NOTHING = 1e-5  # of the largest gradient: below it a gradient is 0 but for rounding

Gradients = Mapping[str, torch.Tensor]


def check_parts(
    folder: ModelFolder, plan: Mapping[str, str], weights: int, axis: TensorAxis, device: torch.device
) -> str | None:
    """Compares a copy of the model, which has `weights` weights, in parts by `plan` with the same copy on this rank alone; a line
    for the log if it could not be tried. Call it on all ranks of a tensor group; all get the same. Raises UserError if they differ."""
    where = f"option --tp: {axis.ranks}: {folder.path}: {folder.architecture}"
    failure = "it is large, and no small copy of it can be built"
    for model in small_models(model_class(folder), make_config(folder, None), weights):
        for dtype in FAR if count(model) <= SMALL else (torch.float32,):
            whole, parted = (copy.deepcopy(model).to(device, dtype).eval() for _ in range(2))
            tokens = _tokens(whole.config, device)
            try:
                loss = _gradients(whole, tokens, None)
            except Exception as error:  # this copy, or this type: the next one
                failure = f"a copy of it fails: {_first_line(error)}"
                continue
            _refuse_other_result(where, split_model(parted, plan, axis), parted, whole, loss, tokens, axis)
            return None
    return f"{where}: not compared with one process: {failure}"


def _tokens(config: Any, device: torch.device) -> torch.Tensor:
    """Rows that have all words of a small vocabulary, those with a meaning of their own too."""
    words = int(config.get_text_config().vocab_size)
    tokens: torch.Tensor = torch.arange(ROWS * TOKENS, device=device) * 7 % words
    return tokens.view(ROWS, TOKENS)


def _gradients(model: Any, tokens: torch.Tensor, split: SplitLogits | None) -> float:
    """Computes gradients; returns the loss. `split`: of a model of which this rank has some words of the logits."""
    with one_sequence_a_row():
        logits = model(input_ids=tokens, use_cache=False).logits
    inputs, labels = logits[:, :-1], tokens[:, 1:]
    if split is None:
        loss = cross_entropy(inputs.flatten(0, 1), labels.flatten(), reduction="sum")
    else:
        loss = split.sum_of_losses(inputs, labels, IGNORED)
    loss = loss / labels.numel()
    loss.backward()
    return float(loss.detach())


def _refuse_other_result(
    where: str, parts: TensorParts, parted: Any, whole: Any, loss: float, tokens: torch.Tensor, axis: TensorAxis
) -> None:
    """Raises UserError if the model in parts has another loss or other gradients than `whole`, which has them already."""
    instead = "allowed: models whose plan is that of one process; fix: --shard instead of --tp"
    splits = Splits(parts.splits, axis)
    with torch.no_grad():
        for name, weight in parted.named_parameters():
            weight.copy_(taken(whole.get_parameter(name), piece_of(name, weight, splits)))
    try:
        found = _gradients(parted, tokens, SplitLogits(axis, parts.words) if parts.words else None)
    except Exception as error:
        raise UserError(f"{where}: transformers' plan fails: {_first_line(error)}; {instead}") from None
    for name in sorted(parts.partial):
        gradient = parted.get_parameter(name).grad
        if gradient is not None:
            dist.all_reduce(gradient, group=axis.group)
    far = _distances(parted, whole, splits)
    worst = max(far, key=far.__getitem__, default="")
    limit = FAR[next(whole.parameters()).dtype]
    if abs(found - loss) > limit * abs(loss):
        raise UserError(f"{where}: by transformers' plan its loss is {found:.6f}, in one process {loss:.6f}; {instead}")
    if worst and far[worst] > limit:
        raise UserError(
            f"{where}: by transformers' plan the gradient of {worst} is off by {far[worst]:.2g} of its norm in one process; "
            f"{instead}"
        )


def _distances(parted: Any, whole: Any, splits: Splits) -> dict[str, float]:
    """How far each gradient is from that of `whole`, as a share of its norm: the largest over the ranks of the group."""
    wanted = {name: weight.grad for name, weight in whole.named_parameters() if weight.grad is not None}
    largest = max((float(gradient.norm()) for gradient in wanted.values()), default=0.0)
    names = [name for name, gradient in wanted.items() if float(gradient.norm()) > NOTHING * largest]
    rows = []
    for name in names:
        weight, norm = parted.get_parameter(name), wanted[name].norm()
        expected = taken(wanted[name], piece_of(name, weight, splits))
        rows.append(((expected if weight.grad is None else expected - weight.grad).norm() / norm).float())
    if not rows:
        return {}
    found = torch.stack(rows)
    dist.all_reduce(found, dist.ReduceOp.MAX, group=splits.axis.group)
    return dict(zip(names, found.nan_to_num(nan=torch.inf).tolist(), strict=True))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
