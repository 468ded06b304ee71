"""Faults that only a GPU would show, each made in the forked ranks of a small job. Imports no torch at the top.

Each function makes one thing wrong; `expected` is what must be in the rank's output, or among its waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .jobs import DDP, IMAGES, TEXT, Job

Changed = Any  # a module or class whose functions are replaced, which types do not allow
Values = Any  # what passes through a replaced function

VIT = Job(DDP, (*IMAGES, "--dropout", "0.1", "--clip-norm", "1"))
LLAMA = Job(DDP, (*TEXT, "--model", "{made}/llama", "--clip-norm", "1"))
SHARDED = Job(DDP, (*IMAGES, "--shard", "all"), ranks=2)
TWO_DEVICES, PAGEABLE = "Expected all tensors to be on the same device", "copy from pageable memory"


@dataclass(frozen=True, slots=True)
class Mutation:
    """One fault: how to make it, the job that runs with it, and by what it is caught."""

    make_wrong: Callable[[], None]
    job: Job
    expected: str


def _around(owner: Changed, name: str, wrong: Callable[..., Values]) -> None:
    """Replaces a function by `wrong`, which gets the original and its arguments."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: wrong(original, *args, **kwargs))


def _steps() -> Changed:
    from algorun_train.loop import data_parallel_steps

    return data_parallel_steps


def _copies(wrong: Callable[[Values, Values], Values]) -> None:
    from algorun_train.data import token_data

    changed: Changed = token_data
    changed.to_device = wrong


def _with_loss(wrong: Callable[[Values], Values]) -> None:
    """Does `wrong` with each step's loss."""

    def step(original: Values, *args: Values) -> Values:
        loss = original(*args)
        wrong(loss)
        return loss

    _around(_steps().DataParallelSteps, "step", step)


def _with_labels(wrong: Callable[[Values, Values, Values], Values]) -> None:
    """`wrong` gets the sum of losses, the scores of the model and the labels."""
    from algorun_train.loop.losses import PER_LABEL

    original = PER_LABEL.loss
    object.__setattr__(PER_LABEL, "loss", lambda logits, labels: wrong(original, logits, labels))


def batch_left_on_the_cpu() -> None:
    _copies(lambda tensor, device: tensor)


def labels_left_on_the_cpu() -> None:
    from algorun_train.data.batch import Batch
    from algorun_train.data.token_data import TokenData

    def batch(original: Values, *args: Values) -> Values:
        made = original(*args)
        return Batch(made.inputs, made.labels.to("cpu", non_blocking=True), made.valid)

    _around(TokenData, "_batch", batch)


def copy_from_pageable_memory() -> None:
    _copies(lambda tensor, device: tensor.to(device))


def pageable_copy_that_does_not_block() -> None:
    _copies(lambda tensor, device: tensor.to(device, non_blocking=True))


def pinned_copy_that_blocks() -> None:
    _copies(lambda tensor, device: tensor.pin_memory().to(device))


def pinned_copy_that_changes_the_type() -> None:
    import torch

    _copies(lambda tensor, device: tensor.to(torch.int32).pin_memory().to(device, torch.int64, non_blocking=True))


def choices_of_augment_left_on_the_cpu() -> None:
    from algorun_train.data import augment

    changed: Changed = augment
    changed.to_device = lambda tensor, device: tensor


def hidden_item() -> None:
    _with_loss(lambda loss: loss.item())


def comparison_of_a_loss() -> None:
    _with_loss(lambda loss: loss > 1e9 and print("large"))


def loss_printed() -> None:
    _with_loss(print)


def loss_as_numpy() -> None:
    _with_loss(lambda loss: loss.numpy())


def loss_sent_down() -> None:
    _with_loss(lambda loss: loss.cpu())


def synchronize_in_a_step() -> None:
    import torch

    _with_loss(lambda loss: torch.cuda.synchronize())


def scale_made_from_a_number() -> None:
    import torch

    _with_loss(lambda loss: loss * torch.tensor([2.0], device=loss.device))


def meter_on_the_cpu() -> None:
    import torch

    from algorun_train.loop.meter import Meter

    def init(original: Values, self: Values, comm: Values) -> None:
        original(self, comm)
        self._loss = torch.zeros(1, dtype=torch.float64)

    original = Meter.__init__
    changed: Changed = Meter
    changed.__init__ = lambda self, comm: init(original, self, comm)


def mask_on_the_cpu() -> None:
    import torch

    _with_labels(lambda loss, logits, labels: loss(logits, labels) * torch.ones(2).max(torch.zeros(2)).sum().expand(1))


def labels_chosen_by_a_mask() -> None:
    _with_labels(lambda loss, logits, labels: loss(logits, labels) + labels[labels >= 0].sum() * 0)


def noise_of_the_cpu_s_generator() -> None:
    import torch

    def noisy(loss: Values, logits: Values, labels: Values) -> Values:
        return loss(logits + torch.randn(logits.shape, device=logits.device, generator=torch.Generator()), labels)

    _with_labels(noisy)


def clipping_that_looks_at_the_norm() -> None:
    import torch

    changed: Changed = torch.nn.utils
    _around(changed, "clip_grad_norm_", lambda original, *args: original(*args, error_if_nonfinite=True))


def optimizer_state_on_the_cpu() -> None:
    def step(original: Values, self: Values, *args: Values) -> Values:
        for state in self.optimizer.state.values():
            state["exp_avg"] = state["exp_avg"].cpu()
        return original(self, *args)

    _around_method(_steps().DataParallelSteps, "step", step)


def _around_method(owner: Changed, name: str, wrong: Callable[..., Values]) -> None:
    original = getattr(owner, name)
    setattr(owner, name, lambda self, *args: wrong(original, self, *args))


def weight_left_on_the_cpu() -> None:
    from algorun_train.jobs.ddp_job import DdpJob

    def lay_out(original: Values, self: Values) -> Values:
        mesh = original(self)
        weight = next(self._model.parameters())
        weight.data = weight.data.cpu()
        return mesh

    _around_method(DdpJob, "_lay_out", lay_out)


def evaluation_read_in_each_batch() -> None:
    def evaluate(original: Values, self: Values, batch: Values) -> Values:
        scores = original(self, batch)
        scores[0].item()
        return scores

    _around_method(_steps().DataParallelSteps, "evaluate", evaluate)


def packed_sequences_looked_for() -> None:
    from contextlib import nullcontext

    from algorun_train.models import folder_model

    changed: Changed = folder_model
    changed.one_sequence_a_row = nullcontext


def sharded_save_copied_piece_by_piece() -> None:
    from algorun_train.checkpoint import sharded_state

    def gathered(original: Values, tensor: Values, owner: Values, mesh: Values, host: Values, split: Values) -> Values:
        return original(tensor, owner, mesh, None, split)

    _around(sharded_state, "gathered", gathered)


def save_copied_to_pageable_memory() -> None:
    from algorun_train.ranks.host_copies import HostCopies

    _around_method(HostCopies, "copy", lambda original, self, tensor: tensor.detach().cpu())


def save_that_waits_for_each_copy() -> None:
    from algorun_train.ranks.host_copies import HostCopies

    def joined(original: Values, self: Values, *args: Values) -> Values:
        whole = original(self, *args)
        self.wait()
        return whole

    _around_method(HostCopies, "joined", joined)


MUTATIONS: Mapping[str, Mutation] = {
    each.__name__: Mutation(each, job, expected)
    for each, job, expected in (
        (batch_left_on_the_cpu, LLAMA, TWO_DEVICES),
        (labels_left_on_the_cpu, LLAMA, TWO_DEVICES),
        (copy_from_pageable_memory, LLAMA, PAGEABLE),
        (pageable_copy_that_does_not_block, LLAMA, PAGEABLE),
        (pinned_copy_that_blocks, LLAMA, "blocking copy to the device"),
        (pinned_copy_that_changes_the_type, LLAMA, "blocking copy to the device"),
        (choices_of_augment_left_on_the_cpu, VIT, PAGEABLE),
        (hidden_item, VIT, "item"),
        (comparison_of_a_loss, VIT, "item"),
        (loss_printed, VIT, "item"),
        (loss_as_numpy, VIT, "can't convert cuda:0 device type tensor to numpy"),
        (loss_sent_down, VIT, "copy from the device"),
        (synchronize_in_a_step, VIT, "torch.cuda.synchronize"),
        (scale_made_from_a_number, VIT, PAGEABLE),
        (meter_on_the_cpu, VIT, TWO_DEVICES),
        (mask_on_the_cpu, VIT, TWO_DEVICES),
        (labels_chosen_by_a_mask, VIT, "aten::nonzero"),
        (noise_of_the_cpu_s_generator, VIT, "Expected a 'cuda' device type for generator"),
        (clipping_that_looks_at_the_norm, VIT, "item"),
        (optimizer_state_on_the_cpu, VIT, TWO_DEVICES),
        (weight_left_on_the_cpu, VIT, "must be on the same type of devices"),
        (evaluation_read_in_each_batch, VIT, "item at training_loop.py:_evaluate"),
        (packed_sequences_looked_for, LLAMA, "item at folder_model.py:forward"),
        (sharded_save_copied_piece_by_piece, SHARDED, "copy from the device at sharded_model.py:gathered"),
        (save_copied_to_pageable_memory, VIT, "copy from the device at shard_saver.py:on_cpu"),
        (save_that_waits_for_each_copy, SHARDED, "Stream.synchronize at host_copies.py:wait"),
    )
}
