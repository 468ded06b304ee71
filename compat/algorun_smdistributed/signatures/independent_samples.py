"""Whether each row of a model's output depends on one sample alone."""

from __future__ import annotations

import torch
from torch import nn

from algorun_train.parallel.cut.module_copy import copy_modules
from algorun_train.parallel.model import trees
from algorun_train.ranks import generators

from .model_call import ModelCall


def by_mode(model: nn.Module, call: ModelCall, device: torch.device) -> dict[bool, bool]:
    """Whether samples are independent in training (True), and in evaluation (False)."""
    return {mode: samples_are_independent(model, call, mode, device) for mode in (True, False)}


def samples_are_independent(model: nn.Module, call: ModelCall, is_training: bool, device: torch.device) -> bool:
    """Tries the call with another last sample: the other rows of all outputs must stay, and each output must have rows.

    BatchNorm in training, comparisons between samples and means over the batch show in the other rows. False for a batch
    of one sample. What is drawn at random afterwards on `device` stays the same.
    """
    args, kwargs = trees.arguments(call.example(model))
    batch = call.samples(model)
    rows = torch.arange(batch).clamp(max=max(batch - 2, 0))

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        of_samples = tensor.dim() and tensor.shape[0] == batch
        return tensor.index_select(0, rows.to(tensor.device)) if of_samples else tensor.clone()

    copied = copy_modules(model, lambda tensor: tensor if isinstance(tensor, nn.Parameter) else tensor.clone())
    copied.train(is_training)
    results = []
    for change in (torch.clone, changed):  # copies: a model may change its arguments in place
        with generators.kept(device), torch.no_grad():
            torch.manual_seed(0)
            a, k = trees.mapped((args, kwargs), change)
            results.append(trees.leaves(copied(*a, **k)))
    return batch > 1 and all(
        one.dim() > 0 and one.shape[0] == batch and torch.allclose(one[:-1].double(), other[:-1].double(), 1e-4, 1e-6)
        for one, other in zip(*results, strict=True)
    )
