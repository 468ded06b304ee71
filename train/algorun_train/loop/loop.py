"""The training loop: epochs of steps, reports, evaluations, checkpoints and the common stop. Knows no model and no way
of spreading it; those are behind `Stepper`."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from algorun.inside.stop_agreement import Agreement
from algorun_train.data.batch import Batch, Source
from algorun_train.data.sampler import Batching, Step, steps_in
from algorun_train.options.config import TrainConfig
from algorun_train.ranks.communicator import Communicator

from .meter import Meter, Reading, Window
from .metrics import EpochReport, Pace, StepReport
from .optimizer import Schedule


class Stepper(Protocol):
    """A way of computing steps; see parallel/ddp.py."""

    def train(self) -> None: ...
    def eval(self) -> None: ...
    def step(self, batches: Sequence[Batch], total: int, rate: float, number: int) -> torch.Tensor: ...
    def evaluate(self, batch: Batch) -> torch.Tensor:
        """float64 [sum of losses, right answers, samples counted], on the device. Over all ranks each sample counts
        once: where several ranks compute it together, one of them returns its figures and the others zeros."""
        ...


@dataclass(frozen=True, slots=True)
class Position:
    """How far training is: `samples` of `epoch` (0-based) done, after `step` optimizer steps in all. An epoch whose
    samples are all done still waits for its evaluation."""

    epoch: int = 0
    samples: int = 0
    step: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """What a checkpoint keeps of the loop; `losses` holds each rank's sum of losses in this epoch so far."""

    position: Position
    losses: list[float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How training ended. `stopped`: on request, before the end; loss and accuracy are then NaN."""

    stopped: bool
    position: Position
    val_loss: float = math.nan
    val_accuracy: float = math.nan
    samples_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What the loop works with. `save` and `report` are called on all ranks with equal arguments."""

    config: TrainConfig
    comm: Communicator
    data: Source
    stepper: Stepper
    batching: Batching
    schedule: Schedule
    agreement: Agreement
    save: Callable[[Progress], None]
    report: Callable[[StepReport | EpochReport], None]


class Loop:
    """One run from `start` (None: from scratch) to the last epoch or a stop."""

    def __init__(self, parts: Parts, start: Progress | None) -> None:
        self._parts, self._comm = parts, parts.comm
        self._count, self._epochs = parts.data.train_count, parts.config.epochs
        self._meter = Meter(parts.comm)
        self._position = start.position if start else Position()
        self._saved_step = self._position.step if start else -1
        self._rate = 0.0
        self._evaluation_s = 0.0
        self._next_save = self._one_interval_on()
        if start and len(start.losses) == self._comm.size:
            self._meter.epoch.loss = start.losses[self._comm.rank]
        elif start and self._comm.is_leader:
            self._meter.epoch.loss = math.fsum(start.losses)
        self._meter.epoch.samples = self._meter.epoch.carried = self._position.samples

    def run(self) -> Outcome:
        """Trains; all ranks return the same. TrainingError when the loss stops being a number."""
        parts, at = self._parts, self._position
        stream = parts.data.training(at.epoch, at.samples, self._epochs, parts.config.seed, parts.batching)
        evaluated = None
        while self._position.epoch < self._epochs:
            if not self._train_epoch(stream):
                return self._stopped()
            reading = self._meter.read(self._meter.epoch)
            evaluated = self._evaluate()
            if evaluated is None:
                return self._stopped()
            self._finish_epoch(reading, *evaluated)
        if evaluated is None:  # a checkpoint of a finished run: nothing to train, but something to report
            evaluated = self._evaluate()
            if evaluated is None:
                return self._stopped()
        self._save()
        total = self._meter.total
        samples_per_s = total.samples / total.seconds if total.steps else 0.0
        return Outcome(False, self._position, *evaluated, samples_per_s)

    def _train_epoch(self, stream: Iterator[tuple[Step, tuple[Batch, ...]]]) -> bool:
        """Trains to the end of the epoch; False when all agreed to stop before."""
        parts, meter = self._parts, self._meter
        parts.stepper.train()
        meter.start()
        while self._position.samples < self._count:
            begun = time.perf_counter()
            step, batches = next(stream)
            waited_s = time.perf_counter() - begun
            number = self._position.step + 1
            self._rate = parts.schedule.at(step.epoch, step.epoch + step.end / self._count)
            loss = parts.stepper.step(batches, step.total, self._rate, number)
            meter.add(loss, step.total, waited_s)
            self._position = Position(step.epoch, step.end, number)
            if number % parts.config.log_interval == 0:
                self._report_step()
            if not self._agree():
                return False
        meter.fold()
        return True

    def _evaluate(self) -> tuple[float, float] | None:
        """Mean loss and accuracy over the validation split, each sample once; None when all agreed to stop."""
        begun, parts = time.perf_counter(), self._parts
        parts.stepper.eval()
        sums = torch.zeros(3, dtype=torch.float64, device=self._comm.device)
        for batch in parts.data.evaluation(parts.batching):
            sums += parts.stepper.evaluate(batch)
            if not self._agree():
                return None
        rows = self._comm.exchange(sums.tolist())
        loss, right, counted = (math.fsum(column) for column in zip(*rows, strict=True))
        if counted != parts.data.validation_count:
            raise RuntimeError(f"evaluation counted {counted:.0f} of {parts.data.validation_count} samples")
        self._evaluation_s = time.perf_counter() - begun
        return loss / counted, right / counted

    def _agree(self) -> bool:
        """Saves when all ranks are to; False when all are to stop."""
        verdict = self._parts.agreement.poll(save_due=time.monotonic() >= self._next_save)
        if verdict.save or verdict.stop:
            self._save()
        return not verdict.stop

    def _save(self) -> None:
        if self._position.step == self._saved_step:
            return
        self._meter.fold()
        self._meter.read(self._meter.epoch)  # never keep weights that a broken loss has spoilt
        losses = [row[0] for row in self._comm.exchange([self._meter.epoch.loss])]
        self._parts.save(Progress(self._position, losses))
        self._saved_step, self._next_save = self._position.step, self._one_interval_on()
        self._meter.start()

    def _one_interval_on(self) -> float:
        return time.monotonic() + (self._parts.config.checkpoint_interval_s or math.inf)

    def _stopped(self) -> Outcome:
        return Outcome(True, self._position)

    def _report_step(self) -> None:
        self._meter.fold()
        reading = self._meter.read(self._meter.interval)
        self._meter.interval = Window()
        self._parts.report(
            StepReport(
                step=self._position.step,
                steps=self._position.step + self._steps_left(),
                epoch=self._position.epoch + 1,
                epochs=self._epochs,
                train_loss=reading.loss,
                learning_rate=self._rate,
                pace=self._pace(reading, self._epochs - self._position.epoch),
            )
        )

    def _finish_epoch(self, reading: Reading, loss: float, accuracy: float) -> None:
        epoch = self._position.epoch + 1
        self._position = Position(epoch, 0, self._position.step)
        self._meter.epoch = Window()
        self._parts.report(
            EpochReport(
                step=self._position.step,
                epoch=epoch,
                epochs=self._epochs,
                train_loss=reading.loss,
                val_loss=loss,
                val_accuracy=accuracy,
                pace=self._pace(reading, self._epochs - epoch),
            )
        )

    def _pace(self, reading: Reading, evaluations: int) -> Pace:
        total = self._meter.total
        step_s = total.seconds / total.steps if total.steps else math.inf
        left = self._steps_left()
        return Pace(
            unit=self._parts.data.unit,
            samples_per_s=reading.samples_per_s,
            data_wait=reading.data_wait,
            peak_memory_mib=reading.peak_memory_mib,
            eta_s=left * step_s + evaluations * self._evaluation_s if left else evaluations * self._evaluation_s,
        )

    def _steps_left(self) -> int:
        whole, batch = self._epochs - self._position.epoch - 1, self._parts.batching.global_batch
        return max(whole, -1) * steps_in(self._count, batch) + steps_in(self._count - self._position.samples, batch)
