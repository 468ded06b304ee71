"""Steps of data parallel training: each rank has the complete model and computes its share of the batch (Li et al. 2020)."""

import contextlib
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from algorun_train.common.activity import Activity
from algorun_train.data.batch import Batch
from algorun_train.options.job_options import TrainOptions
from algorun_train.ranks.communicator import Communicator

from .learning_rate import set_learning_rate
from .losses import label_scores, sum_of_losses
from .stepper import draws_random_numbers, seed_step


class _Exchange:
    """Within a backward pass: from the gradient of the model's first weight on, which mostly comes last, DDP only exchanges."""

    def __init__(self, model: nn.Module) -> None:
        self._activity, self._inside, self._begun = Activity("exchange"), False, False
        first = next((each for each in model.parameters() if each.requires_grad), None)
        if first is not None:
            first.register_post_accumulate_grad_hook(self._begin)

    def _begin(self, _: torch.Tensor) -> None:
        if self._inside and not self._begun:
            self._begun = True
            self._activity.__enter__()

    def __enter__(self) -> None:
        self._inside, self._begun = True, False

    def __exit__(self, *error: object) -> None:
        self._inside = False
        if self._begun:
            self._activity.__exit__(None, None, None)


class DataParallelSteps:
    """A stepper that trains `model` on all ranks; its weights and gradients stay equal on all ranks."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, comm: Communicator, options: TrainOptions
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self._comm, self._clip, self._seed = comm, options.clip_norm, options.seed
        self._random = draws_random_numbers([model])
        self._wrapped, self._no_sync = self._wrap(model)
        self._exchange = _Exchange(model) if self._wrapped is not model else None
        self._call = torch.compile(self._wrapped) if options.compile else self._wrapped
        self._device_type = comm.device.type
        self._autocast = options.precision == "bf16"

    def _wrap(self, model: nn.Module) -> tuple[nn.Module, Callable[[], contextlib.AbstractContextManager[object]]]:
        """What computes with all ranks, and a context in which its backward pass exchanges no gradients."""
        if not self._comm.world.distributed:
            return model, contextlib.nullcontext
        ids = [self._comm.device.index] if self._comm.device.type == "cuda" else None
        wrapped = DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
        return wrapped, wrapped.no_sync

    def warm_up(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        """One pass over a batch of the shape and memory format of real ones, before the first step. No weight changes.

        DDP rearranges its buckets after the first backward pass. With more than two ranks the arrangement decides the order
        of additions. Without this pass a resumed run would begin with another arrangement than an uninterrupted run has at
        that step, and the results would differ in the last bits. The pass also compiles and allocates, so the first step
        takes no longer than the others.
        """
        statistics = [buffer.clone() for buffer in self.model.buffers()]  # batch normalisation counts this pass too
        self.model.train()
        self._loss(inputs, labels).backward()
        self.optimizer.zero_grad(set_to_none=True)
        for buffer, before in zip(self.model.buffers(), statistics, strict=True):
            buffer.copy_(before)

    def train(self) -> None:
        self.model.train()

    def eval(self) -> None:
        self.model.eval()

    def step(self, batches: Sequence[Batch], total: int, rate: float, number: int) -> torch.Tensor:
        """See `Stepper`. The gradient is the exact mean over the `total` labels, also in a short last step: DDP averages
        over the ranks, so each rank scales its sum of losses by ranks / total."""
        if self._random:
            seed_step(self._seed, number, self._comm)
        set_learning_rate(self.optimizer, rate)
        scale = self._comm.size / max(total, 1)
        losses = torch.zeros((), device=self._comm.device)
        for turn, batch in enumerate(batches, start=1):
            # Gradients add up over the passes; only the last pass exchanges them.
            with contextlib.nullcontext() if turn == len(batches) else self._no_sync():
                with Activity("forward"):
                    loss = self._loss(batch.inputs, batch.labels)
                with Activity("backward"), self._exchange or contextlib.nullcontext():
                    (loss * scale).backward()
            losses += loss.detach()
        with Activity("optimizer"):
            if self._clip:
                nn.utils.clip_grad_norm_(self.model.parameters(), self._clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return losses

    def evaluate(self, batch: Batch) -> torch.Tensor:
        """See `Stepper`."""
        with torch.no_grad(), self._precision():
            logits = self.model(batch.inputs)
            return label_scores(logits, batch.labels)

    def _loss(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with self._precision():
            return sum_of_losses(self._call(inputs), labels)

    def _precision(self) -> contextlib.AbstractContextManager[object]:
        return torch.autocast(self._device_type, torch.bfloat16, enabled=self._autocast)
