"""Steps of data parallel training: each rank has the complete model and computes its share of the batch (Li et al. 2020)."""

import contextlib
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from algorun_train.common.activity import Activity
from algorun_train.data.batch import Batch
from algorun_train.options.job_options import TrainOptions
from algorun_train.parallel.shard.tensor_gradients import TensorGradients
from algorun_train.ranks.communicator import Communicator

from .learning_rate import set_learning_rate
from .losses import PER_LABEL, Scoring
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
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        comm: Communicator,
        options: TrainOptions,
        tensor: TensorGradients | None = None,
        scoring: Scoring = PER_LABEL,
    ) -> None:
        """`tensor`: the gradients of a model whose layers several ranks compute together, on the same batch. `scoring` compares
        what the model returns with labels."""
        self._scoring = scoring
        self.model, self.optimizer = model, optimizer
        self._tensor, ranks = tensor, tensor.ranks if tensor else 1
        self._replica, self._replicas = comm.rank // ranks, comm.size // ranks
        self._comm, self._clip, self._seed = comm, options.clip_norm, options.seed
        self._random = draws_random_numbers([model])
        self._wrapped, self._no_sync = self._wrap(model)
        self._exchange = _Exchange(model) if self._wrapped is not model else None
        self._call = torch.compile(self._wrapped) if options.compile else self._wrapped
        self._device_type = comm.device.type
        self._autocast = options.precision == "bf16"

    def _wrap(self, model: nn.Module) -> tuple[nn.Module, Callable[[], contextlib.AbstractContextManager[object]]]:
        """What computes with all ranks, and a context in which its backward pass exchanges no gradients."""
        if not self._comm.world.distributed or (self._tensor and self._replicas == 1):
            return model, contextlib.nullcontext
        ids = [self._comm.device.index] if self._comm.device.type == "cuda" else None
        group = self._tensor.replicas_group if self._tensor else None
        wrapped = DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True, process_group=group)
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
            seed_step(self._seed, number, self._comm, self._replica)
        set_learning_rate(self.optimizer, rate)
        scale = self._replicas / max(total, 1)
        losses = torch.zeros((), device=self._comm.device)
        for turn, batch in enumerate(batches, start=1):
            # Gradients add up over the passes; only the last pass exchanges them.
            with contextlib.nullcontext() if turn == len(batches) else self._no_sync():
                with Activity("forward"):
                    loss = self._loss(batch.inputs, batch.labels)
                with Activity("backward"), self._exchange or contextlib.nullcontext():
                    (loss * scale).backward()
            losses += loss.detach()
        if self._tensor:
            with Activity("exchange"):
                self._tensor.add_up()
        with Activity("optimizer"):
            if self._clip and self._tensor:
                self._tensor.clip(self._clip)
            elif self._clip:
                nn.utils.clip_grad_norm_(self.model.parameters(), self._clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return self._counted(losses)

    def evaluate(self, batch: Batch) -> torch.Tensor:
        """See `Stepper`."""
        with torch.no_grad(), self._precision():
            logits = self.model(batch.inputs)
            return self._counted(self._scoring.scores(logits, batch.labels))

    def _counted(self, sums: torch.Tensor) -> torch.Tensor:
        """The sums on one rank of those that compute the same batch, zeros on the others."""
        return torch.zeros_like(sums) if self._tensor and self._tensor.index else sums

    def _loss(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with self._precision():
            return self._scoring.loss(self._call(inputs), labels)

    def _precision(self) -> contextlib.AbstractContextManager[object]:
        return torch.autocast(self._device_type, torch.bfloat16, enabled=self._autocast)
