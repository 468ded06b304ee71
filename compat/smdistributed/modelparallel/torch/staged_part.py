"""Several partitions: the stages of this rank's place in the pipeline."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from algorun import training

from . import checkpointing, manual
from .entry import Entry, Fit, Form, in_pieces, samples_stand_alone, whole_of
from .messages import CPU, gathered
from .parts import Part
from .session import Session
from .shared import UserError

if TYPE_CHECKING:
    from train.parallel.pipeline import Pipeline

Use = Callable[[Any, int], Any]


def precisions() -> dict[str, torch.dtype | None]:
    """Names of what autocast computes in."""
    return training.load("parallel.plan.profiling").PRECISIONS


class StagedPart(Part):
    """Several partitions: this rank's stages. Made at the first step, on all ranks at once."""

    def __init__(
        self, here: Session, module: nn.Module, example: Entry, every: int, overlap: bool, buffers_too: bool
    ) -> None:
        module.to("cpu")  # it is cut there; a stage's own part goes to the device
        self.form: Form = example.form(module)
        # Needed with the first stage alone, and tried before the weights of all stages go different ways.
        self.alone = {mode: samples_stand_alone(module, example, mode) for mode in (True, False)}
        self.pipeline: Pipeline = _pipeline(here, module, example)
        self._mode: bool | None = None
        roots = [stage.module for stage in self.pipeline.modules.values()]
        super().__init__(here, module, roots, self.pipeline.gradients, every, buffers_too)
        if not overlap or every > 1:
            self.pipeline.overlap(False)
        known = dict(module.named_parameters(remove_duplicate=False))
        rows = gathered([name for name, _ in self.named_parameters()], here.axes.pp_group, CPU)
        self._holders = {id(known[name]): rank for rank, names in enumerate(rows) for name in names}

    def holders(self, parameters: Iterable[torch.Tensor]) -> set[int]:
        """The ranks of the pipeline that hold any of these."""
        return {self._holders[id(each)] for each in parameters if id(each) in self._holders}

    def check_training(self, how: Fit) -> None:
        """UserError under another autocast than that of the first training step: the pipeline's buffers have its types."""
        if self._autocast(how) != self.pipeline.autocast:
            wished, made = (
                str(t or "none").removeprefix("torch.") for t in (self._autocast(how), self.pipeline.autocast)
            )
            raise UserError(
                f"a training step calls the model under another autocast ({wished}) than the first one ({made}); allowed: "
                "the same in all of them, any in evaluation; fix: enter torch.autocast in every training step, or in none"
            )

    def train_step(
        self, entries: Sequence[Entry], loss: Callable[[Any, int], torch.Tensor], scale: float, how: Fit
    ) -> None:
        """Forward and backward of all microbatches; `entries` are needed with the first stage, `loss` with the last.

        Smaller microbatches are filled up; the loss sees, and gradients come from, their own samples alone.
        """
        self.check_training(how)
        self._as(self._module.training)
        parts = [in_pieces(self._tensors(entry), self.form, how)[0] for entry in entries]
        self.pipeline.run(
            parts or [()] * self._here.layout.microbatches,
            lambda output, number: loss(whole_of([output], how), number),
            scale,
            reduce=self._turns.now(),
        )

    def evaluate(self, entries: Sequence[Entry], use: Use, how: Fit, only: int | None = None) -> list[Any]:
        """use(output, microbatch) for all microbatches, on the rank with the last stage.

        For the first `only` of them where it is just to see what `use` does: statistics of BatchNorm stay as they are.
        """
        self._as(self._module.training and only is None)
        count = only or self._here.layout.microbatches
        pieces: list[Any] = [()] * (count * how.pieces)
        if entries:
            pieces = [piece for e in entries[:count] for piece in in_pieces(self._tensors(e), self.form, how)]
        outputs = self.pipeline.forward(pieces, lambda output, number: output, self._autocast(how))
        if not self.pipeline.is_last:
            return []
        with torch.no_grad():
            return [use(whole_of(outputs[i * how.pieces :][: how.pieces], how), i) for i in range(count)]

    def _autocast(self, how: Fit) -> torch.dtype | None:
        """What the stages compute under: the autocast of the model's call, else the job's."""
        return getattr(torch, how.autocast) if how.autocast else precisions()[self._here.config.precision]

    def _tensors(self, entry: Entry) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.to(self._here.axes.device) for tensor in entry.tensors(self._module))

    def _as(self, mode: bool) -> None:
        """The stages are in training, or not, as the module is."""
        if mode != self._mode:
            (self.pipeline.train if mode else self.pipeline.eval)()
            self._mode = mode


def _pipeline(here: Session, module: nn.Module, entry: Entry) -> Pipeline:
    split, decide = training.load("parallel.split"), training.load("parallel.plan.decide")
    names = {dtype: name for name, dtype in precisions().items()}
    config = replace(here.config, precision=names[entry.autocast] if entry.autocast else here.config.precision)
    layout = replace(here.layout, microbatch=entry.samples(module) or 1)
    example = entry.example(module)
    with torch.random.fork_rng():  # what the script draws next is the same on all ranks
        if here.wishes.auto_partition:
            folder = training.load("paths").output_dir(os.environ, Path.is_dir)
            decider = decide.Decider(config, here.wishes, layout, module, here.mesh, here.mesh.say)
            found = decider.split(example, folder / decide.PARTITION)
        else:
            cut, fewer = training.load("parallel.cut.anywhere").cut, here.wishes.fewer_stages
            cutting = here.mesh.on_all(lambda: cut(module, example, stages=layout.stages, finest=True, fewer=fewer))
            default = here.wishes.default_partition
            begins, warning = here.mesh.on_all(lambda: manual.placed(cutting, module, default, layout.stages))
            if warning:
                manual.say(warning)
            entries = training.load("parallel.plan.profiling").entries(cutting, here.axes.device, config.precision)
            found = decide.Split(cutting, begins, tuple(entries))
    pipeline = split.assemble(config, layout, found, here.axes, mean=True)
    parts = {index: stage.module for index, stage in pipeline.modules.items()}
    checkpointing.in_stages(module, _stages(found), parts)
    return pipeline


def _stages(found: Any) -> dict[str, set[int]]:
    """The stages that each module's units lie in, by the module's name."""
    ends = [*found.begins[1:], len(found.cutting.segments)]
    stages: dict[str, set[int]] = {}
    for index, (begin, end) in enumerate(zip(found.begins, ends, strict=True)):
        for segment in found.cutting.segments[begin:end]:
            for unit in segment.units:
                words = unit.split(".")
                for length in range(len(words) + 1):
                    stages.setdefault(".".join(words[:length]), set()).add(index)
    return stages
