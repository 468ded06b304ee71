"""Measures training: adds up losses, samples and seconds without waiting for the device, and computes means on request."""

import math
import resource
import time
from dataclasses import dataclass

import torch

from algorun_train.common.errors import TrainingError
from algorun_train.data.sampler import OptimizerStep
from algorun_train.ranks.communicator import Communicator


@dataclass(slots=True)
class MeterWindow:
    """Sums over some steps. `loss` and `waited_s` (seconds spent waiting for data) are this rank's; `samples`
    and `labels` (those that count) are all ranks'.

    `carried` counts the samples among them that an earlier run trained, before this one resumed.
    """

    steps: int = 0
    samples: int = 0
    labels: int = 0
    carried: int = 0
    loss: float = 0.0
    seconds: float = 0.0
    waited_s: float = 0.0

    def add(self, other: "MeterWindow") -> None:
        self.steps += other.steps
        self.samples += other.samples
        self.labels += other.labels
        self.loss += other.loss
        self.seconds += other.seconds
        self.waited_s += other.waited_s


@dataclass(frozen=True, slots=True)
class MeterReading:
    """Means of a window over all ranks. `data_wait` is a share of the time, 0..1; `peak_memory_mib` is the largest of all
    ranks'."""

    loss: float
    samples_per_s: float
    data_wait: float
    peak_memory_mib: float


class Meter:
    """Three windows: `interval` since the last report, `epoch` since the epoch began, `total` since the run began."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self.interval, self.epoch, self.total = MeterWindow(), MeterWindow(), MeterWindow()
        self._open, self._since = MeterWindow(), time.perf_counter()
        self._loss = torch.zeros((), dtype=torch.float64, device=comm.device)

    def start(self) -> None:
        """Restarts the clock. Call it after an evaluation or a checkpoint, whose time does not count as training."""
        self._since = time.perf_counter()

    def add(self, loss: torch.Tensor, step: OptimizerStep, waited_s: float) -> None:
        """Counts one step. `loss` is this rank's sum of losses, a scalar on the device; `waited_s` are the seconds that this rank
        waited for data."""
        self._loss += loss
        self._open.steps += 1
        self._open.samples += step.total
        self._open.labels += step.weight
        self._open.waited_s += waited_s

    def fold(self) -> None:
        """Adds the steps since the last call to all windows. The only method that waits for the device."""
        self._open.loss = self._loss.item()
        now = time.perf_counter()
        self._open.seconds = now - self._since if self._open.steps else 0.0
        for window in (self.interval, self.epoch, self.total):
            window.add(self._open)
        self._open, self._since = MeterWindow(), now
        self._loss.zero_()

    def read(self, window: MeterWindow) -> MeterReading:
        """The means of a window, equal on all ranks. Call it on all ranks. Raises TrainingError if the loss is not finite."""
        rows = self._comm.exchange([window.loss, window.waited_s, self._memory_mib()])
        loss = sum(row[0] for row in rows) / max(window.labels, 1)
        if not math.isfinite(loss):
            raise TrainingError(
                f"the training loss became {loss}; no checkpoint was written since; "
                "fix: a smaller --lr, --clip-norm 1, longer --warmup-epochs, or --precision fp32"
            )
        seconds = max(window.seconds, 1e-9)
        return MeterReading(
            loss=loss,
            samples_per_s=(window.samples - window.carried) / seconds if window.steps else 0.0,
            data_wait=min(sum(row[1] for row in rows) / len(rows) / seconds, 1.0) if window.steps else 0.0,
            peak_memory_mib=max(row[2] for row in rows),
        )

    def _memory_mib(self) -> float:
        if self._comm.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._comm.device) / 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10  # Linux counts in KiB
