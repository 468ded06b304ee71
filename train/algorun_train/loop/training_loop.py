"""The training loop: epochs of steps, reports, evaluations, checkpoints and the common stop.

The loop knows neither the model nor how ranks share the work: its `Stepper` does.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from algorun.inside.stop_agreement import Agreement
from algorun_train.common.activity import Activity, add_work, say_batch
from algorun_train.data.batch import Batch, BatchSource
from algorun_train.data.sampler import Batching, Epochs, OptimizerStep, steps_in
from algorun_train.options.job_options import TrainOptions
from algorun_train.ranks.communicator import Communicator

from .learning_rate import LearningRateSchedule
from .loss_spikes import LossSpikes
from .meter import Meter, MeterReading, MeterWindow
from .metrics import EpochReport, Speed, StepReport
from .progress import LoopProgress, Position
from .stepper import Stepper


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """How training ended. If it was `stopped` on request before the end of the last epoch, loss and accuracy are NaN.

    `val_accuracy` is 0..1. `samples_per_s`: the samples of all ranks, divided by the seconds spent in training steps.
    """

    stopped: bool
    position: Position
    val_loss: float = math.nan
    val_accuracy: float = math.nan
    samples_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LoopSetup:
    """Everything that the loop uses. It calls `save` and `report` on all ranks, with the same arguments."""

    options: TrainOptions
    comm: Communicator
    data: BatchSource
    stepper: Stepper
    batching: Batching
    learning_rate: LearningRateSchedule
    agreement: Agreement
    save: Callable[[LoopProgress], None]
    report: Callable[[StepReport | EpochReport], None]
    sample_flops: float = 0.0  # operations of the model for a sample, forward and backward; 0.0 not known


class TrainingLoop:
    """One run from `start` (None: from scratch) to the end of the last epoch, or to a stop. Make and run it on all ranks."""

    def __init__(self, setup: LoopSetup, start: LoopProgress | None) -> None:
        self._setup, self._comm = setup, setup.comm
        self._count, self._epochs = setup.data.train_count, setup.options.epochs
        self._meter, self._spikes = Meter(setup.comm), LossSpikes()
        self._position = start.position if start else Position()
        self._saved_step = self._position.step if start else -1
        self._rate = 0.0
        self._evaluation_s = 0.0
        self._next_save = self._next_save_time()
        if start and len(start.losses) == self._comm.size:
            self._meter.epoch.loss = start.losses[self._comm.rank]
        elif start and self._comm.is_leader:
            self._meter.epoch.loss = math.fsum(start.losses)
        self._meter.epoch.samples = self._meter.epoch.carried = self._position.samples
        self._meter.epoch.labels = self._position.labels or self._position.samples  # older checkpoints: one for each

    def run(self) -> TrainingOutcome:
        """Trains. Returns the same on all ranks. Raises TrainingError, on all ranks, if the loss is not a finite number."""
        setup, at = self._setup, self._position
        stream = setup.data.training(Epochs(at.epoch, at.samples, self._epochs, setup.options.seed), setup.batching)
        evaluated = None
        while self._position.epoch < self._epochs:
            if not self._train_epoch(stream):
                return self._stopped()
            reading = self._meter.read(self._meter.epoch)
            evaluated = self._evaluated()
            if evaluated is None:
                return self._stopped()
            self._finish_epoch(reading, *evaluated)
        if evaluated is None:  # resumed from a finished run: nothing to train, only evaluate
            evaluated = self._evaluated()
            if evaluated is None:
                return self._stopped()
        self._save()
        total = self._meter.total
        samples_per_s = total.samples / total.seconds if total.steps else 0.0
        return TrainingOutcome(False, self._position, *evaluated, samples_per_s)

    def _train_epoch(self, stream: Iterator[tuple[OptimizerStep, tuple[Batch, ...]]]) -> bool:
        """Trains to the end of the epoch. Returns False if all ranks agreed to stop earlier."""
        setup, meter = self._setup, self._meter
        setup.stepper.train()
        meter.start()
        while self._position.samples < self._count:
            begin = time.perf_counter()
            with Activity("data"):
                step, batches = next(stream)
            waited_s = time.perf_counter() - begin
            say_batch(f"epoch {step.epoch + 1}, samples {step.begin} to {step.end - 1}")
            number = self._position.step + 1
            self._rate = setup.learning_rate.at(step.epoch, step.epoch + step.end / self._count)
            loss = setup.stepper.step(batches, step.weight, self._rate, number)
            meter.add(loss, step, waited_s)
            self._say_work(step)
            labels = step.weight + (self._position.labels if step.begin else 0)
            self._position = Position(step.epoch, step.end, number, labels)
            if number % setup.options.log_interval == 0:
                self._report_step()
            if not self._agree():
                return False
        meter.fold()
        return True

    def _say_work(self, step: OptimizerStep) -> None:
        """Tells the launcher this rank's share of the step."""
        share = (step.end - step.begin) / self._comm.size
        add_work(share, share * self._setup.data.sample_tokens, share * self._setup.sample_flops)

    def _evaluated(self) -> tuple[float, float] | None:
        with Activity("evaluation"):
            return self._evaluate()

    def _evaluate(self) -> tuple[float, float] | None:
        """Mean loss and accuracy over the validation split; each label counts once. None if all ranks agreed to stop."""
        begin, setup = time.perf_counter(), self._setup
        setup.stepper.eval()
        sums = torch.zeros(3, dtype=torch.float64, device=self._comm.device)
        for batch in setup.data.evaluation(setup.batching):
            sums += setup.stepper.evaluate(batch)
            if not self._agree():
                return None
        rows = self._comm.exchange(sums.tolist())
        loss, right, counted = (math.fsum(column) for column in zip(*rows, strict=True))
        if counted != setup.data.validation_weight:
            raise RuntimeError(f"evaluation counted {counted:.0f} of {setup.data.validation_weight} labels")
        self._evaluation_s = time.perf_counter() - begin
        return loss / counted, right / counted

    def _agree(self) -> bool:
        """Asks all ranks whether to save or stop, and saves if they agreed to either. Returns False for a stop."""
        with Activity("exchange"):
            verdict = self._setup.agreement.poll(save_due=time.monotonic() >= self._next_save)
        if verdict.save or verdict.stop:
            self._save()
        return not verdict.stop

    def _save(self) -> None:
        if self._position.step != self._saved_step:
            with Activity("saving"):
                self._save_progress()

    def _save_progress(self) -> None:
        self._meter.fold()
        self._meter.read(self._meter.epoch)  # raises if the loss is not finite: such weights are not saved
        losses = [row[0] for row in self._comm.exchange([self._meter.epoch.loss])]
        self._setup.save(LoopProgress(self._position, losses))
        self._saved_step, self._next_save = self._position.step, self._next_save_time()
        self._meter.start()

    def _next_save_time(self) -> float:
        """When rank 0 next asks for a checkpoint, on the monotonic clock."""
        return time.monotonic() + (self._setup.options.checkpoint_interval_s or math.inf)

    def _stopped(self) -> TrainingOutcome:
        return TrainingOutcome(True, self._position)

    def _report_step(self) -> None:
        self._meter.fold()
        reading = self._meter.read(self._meter.interval)
        self._meter.interval = MeterWindow()
        if self._comm.is_leader and (spike := self._spikes.add(reading.loss)):
            self._comm.say(f"warning: loss spike at step {self._position.step}: {spike}")
        self._setup.report(
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

    def _finish_epoch(self, reading: MeterReading, loss: float, accuracy: float) -> None:
        epoch = self._position.epoch + 1
        self._position = Position(epoch, 0, self._position.step)
        self._meter.epoch = MeterWindow()
        self._setup.report(
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

    def _pace(self, reading: MeterReading, evaluations: int) -> Speed:
        total = self._meter.total
        step_s = total.seconds / total.steps if total.steps else math.inf
        steps = self._steps_left()
        return Speed(
            unit=self._setup.data.unit,
            samples_per_s=reading.samples_per_s,
            sample_tokens=self._setup.data.sample_tokens,
            data_wait=reading.data_wait,
            peak_memory_mib=reading.peak_memory_mib,
            eta_s=steps * step_s + evaluations * self._evaluation_s if steps else evaluations * self._evaluation_s,
        )

    def _steps_left(self) -> int:
        epochs, batch = self._epochs - self._position.epoch - 1, self._setup.batching.global_batch
        return max(epochs, -1) * steps_in(self._count, batch) + steps_in(self._count - self._position.samples, batch)
