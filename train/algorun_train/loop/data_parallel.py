"""Data parallelism: every rank holds the whole model and computes its share of the batch (Li et al. 2020)."""

import contextlib
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from algorun_train.data.batch import IGNORED, Batch
from algorun_train.options.config import TrainConfig
from algorun_train.ranks.communicator import Communicator


class DataParallel:
    """Steps and evaluates `model`, whose weights and gradients stay equal on all ranks."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, comm: Communicator, config: TrainConfig
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self._comm, self._clip, self._seed = comm, config.clip_norm, config.seed
        self._random = any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules())
        self._wrapped: nn.Module = model
        self._no_sync: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
        if comm.world.distributed:
            ids = [comm.device.index] if comm.device.type == "cuda" else None
            wrapped = DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
            self._wrapped, self._no_sync = wrapped, wrapped.no_sync
        self._call = torch.compile(self._wrapped) if config.compile else self._wrapped
        self._device_type = comm.device.type
        self._autocast = config.precision == "bf16"

    def warm_up(self, image_size: int, batch: int) -> None:
        """One pass whose gradients are thrown away, before the first real step.

        DDP lays its buckets out anew after its first backward pass, and with more than two ranks the layout decides
        the order of additions. Without this pass a resumed run would do its first step in another layout than the
        uninterrupted run did, and differ in the last bits. Compilation and allocation happen here as well, so the
        first step is as quick as the rest.
        """
        # Pixels lie in memory as the data module lays them out: compiled code is made for one layout.
        images = torch.zeros(batch, image_size, image_size, 3, device=self._comm.device).permute(0, 3, 1, 2)
        labels = torch.zeros(batch, dtype=torch.int64, device=self._comm.device)
        self.model.train()
        self._loss(images, labels).backward()
        self.optimizer.zero_grad(set_to_none=True)

    def train(self) -> None:
        self.model.train()

    def eval(self) -> None:
        self.model.eval()

    def step(self, batches: Sequence[Batch], total: int, rate: float, number: int) -> torch.Tensor:
        """One optimizer step over `batches` (one per accumulation pass); `total` samples count over all ranks.

        Returns this rank's sum of losses, on the device and not waited for. DDP averages gradients over ranks, so the
        local sum times ranks / total gives the exact mean over the global batch, short last steps included.
        """
        if self._random:
            # The streams depend on (seed, step, rank) only: a resumed run needs no saved state to draw the same.
            torch.manual_seed(((self._seed * 1_000_003 + number) * 65_537 + self._comm.rank) % 2**63)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        scale = self._comm.size / total
        losses = torch.zeros((), device=self._comm.device)
        for turn, batch in enumerate(batches, start=1):
            # Gradients are exchanged in the last pass only; in the others that would be traffic for nothing.
            with contextlib.nullcontext() if turn == len(batches) else self._no_sync():
                loss = self._loss(batch.inputs, batch.labels)
                (loss * scale).backward()
            losses += loss.detach()
        if self._clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self._clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return losses

    def evaluate(self, batch: Batch) -> torch.Tensor:
        """[sum of losses, right answers, samples] over the samples of `batch` that count, on the device."""
        with torch.no_grad(), self._precision():
            logits = self.model(batch.inputs)
            loss = functional.cross_entropy(logits, batch.labels, ignore_index=IGNORED, reduction="sum")
        right = (logits.argmax(dim=1) == batch.labels).sum()
        counted = torch.full_like(loss, batch.valid, dtype=torch.float64)  # filled on the device, which need not wait
        return torch.stack([loss.double(), right.double(), counted])

    def _loss(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with self._precision():
            return functional.cross_entropy(self._call(images), labels, ignore_index=IGNORED, reduction="sum")

    def _precision(self) -> contextlib.AbstractContextManager[object]:
        return torch.autocast(self._device_type, torch.bfloat16, enabled=self._autocast)
