"""This rank's part of the model: all of it with one partition, else the stages of its place in the pipeline."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from algorun import training

from . import checkpointing, manual
from .entry import Entry, Fit, Form, in_pieces, samples_stand_alone, whole_of
from .replicas import Turns, Uneven, equalise
from .session import Session, UserError

if TYPE_CHECKING:
    from train.parallel.pipeline import Pipeline

Use = Callable[[Any, int], Any]
PRECISIONS = {None: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


class WholePart:
    """One partition: the module itself, on this rank's device."""

    def __init__(self, here: Session, module: nn.Module, every: int, overlap: bool, buffers_too: bool) -> None:
        self._here, self.module = here, module.to(here.axes.device)
        group = here.axes.dp_group
        self.equalise(0)
        self._sum = training.load("parallel.reduce").GradientSum(module.parameters(), group, None, mean=True)
        self._overlap, self._turns = overlap and every == 1, Turns(every)
        self._buffers_too, self._backwards = buffers_too, 0
        checkpointing.in_place(module)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self.module.named_parameters()

    def roots(self) -> list[nn.Module]:
        return [self.module]

    def state_dict(self) -> dict[str, torch.Tensor]:
        return dict(self.module.state_dict())

    def begin(self, uneven: Uneven | None) -> None:
        """Before a step."""
        if not self.module.training or not torch.is_grad_enabled():
            return
        if uneven:
            uneven.goes_on(True)
        if self._buffers_too:
            equalise(self.module.buffers(), self._here.axes.dp_group, uneven.source if uneven else 0)

    def empty_step(self, uneven: Uneven) -> None:
        """A step of the other replicas, for one that has no batch left."""
        if self._buffers_too:
            equalise(self.module.buffers(), self._here.axes.dp_group, uneven.source)
        _without_a_batch(self._sum, self._turns, self.module.parameters())

    def equalise(self, source: int) -> None:
        """All replicas get the weights and buffers of one."""
        equalise([*self.module.parameters(), *self.module.buffers()], self._here.axes.dp_group, source)

    def hook(self, hook: Callable[[Any], Any]) -> None:
        """Reduces buckets of gradients in the place of the mean."""
        self._sum.hook = hook

    def end(self, backwards: int) -> None:
        """After a step with so many backward passes: gradients are the mean over the replicas, when it is their turn.

        From the second step on they travel while the last pass still runs; for that their number must stay.
        """
        if not backwards:
            return
        if self._sum.passes is not None and backwards != self._backwards:
            raise UserError(
                f"@smp.step functions call model.backward {backwards} times a step, {self._backwards} times before; "
                "allowed: always equally often; fix: smp.DistributedModel(.., overlapping_allreduce=False)"
            )
        if self._turns.now():
            self._sum.finish()
        self._backwards = backwards
        if self._overlap:
            self._sum.passes = backwards


class StagedPart:
    """Several partitions: this rank's stages. Made at the first step, on all ranks at once."""

    def __init__(
        self, here: Session, module: nn.Module, example: Entry, every: int, overlap: bool, buffers_too: bool
    ) -> None:
        self._here, self._module = here, module
        self.form: Form = example.form(module)
        self._buffers_too, self._turns = buffers_too, Turns(every)
        self._mode: bool | None = None
        # Needed with the first stage alone, and tried before the weights of all stages go different ways.
        self.alone = {mode: samples_stand_alone(module.to("cpu"), example, mode) for mode in (True, False)}
        pipeline = _pipeline(here, module, example)
        self.pipeline: Pipeline = pipeline
        if not overlap or every > 1:
            pipeline.overlap(False)
        self.equalise(0)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self.pipeline.named_parameters()

    def roots(self) -> list[nn.Module]:
        return [stage.module for stage in self.pipeline.modules.values()]

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self.pipeline.state_dict()

    def train_step(
        self,
        entries: Sequence[Entry],
        loss: Callable[[Any, int], torch.Tensor],
        scale: float,
        uneven: Uneven | None,
        how: Fit,
    ) -> None:
        """Forward and backward of all microbatches; `entries` are needed with the first stage, `loss` with the last.

        Smaller microbatches are filled up; the loss sees, and gradients come from, their own samples alone.
        """
        self._as(self._module.training)
        if uneven:
            uneven.goes_on(True)
        if self._buffers_too:
            equalise(self._buffers(), self._here.axes.dp_group, uneven.source if uneven else 0)
        parts = [in_pieces(self._tensors(entry), self.form, how)[0] for entry in entries]
        self.pipeline.run(
            parts or [()] * self._here.layout.microbatches,
            lambda output, number: loss(whole_of([output], how), number),
            scale,
            reduce=self._turns.now(),
        )

    def empty_step(self, uneven: Uneven) -> None:
        """A step of the other replicas, for one that has no batch left."""
        if self._buffers_too:
            equalise(self._buffers(), self._here.axes.dp_group, uneven.source)
        _without_a_batch(self.pipeline.gradients, self._turns, self.pipeline.parameters())

    def equalise(self, source: int) -> None:
        """All replicas get the weights and buffers of one."""
        equalise([*self.pipeline.parameters(), *self._buffers()], self._here.axes.dp_group, source)

    def hook(self, hook: Callable[[Any], Any]) -> None:
        """Reduces buckets of gradients in the place of the mean."""
        self.pipeline.gradients.hook = hook

    def evaluate(self, entries: Sequence[Entry], use: Use, how: Fit, only: int | None = None) -> list[Any]:
        """use(output, microbatch) for all microbatches, on the rank with the last stage.

        For the first `only` of them where it is just to see what `use` does: statistics of BatchNorm stay as they are.
        """
        self._as(self._module.training and only is None)
        count = only or self._here.layout.microbatches
        pieces: list[Any] = [()] * (count * how.pieces)
        if entries:
            pieces = [piece for e in entries[:count] for piece in in_pieces(self._tensors(e), self.form, how)]
        outputs = self.pipeline.forward(pieces, lambda output, number: output)
        if not self.pipeline.is_last:
            return []
        with torch.no_grad():
            return [use(whole_of(outputs[i * how.pieces :][: how.pieces], how), i) for i in range(count)]

    def _tensors(self, entry: Entry) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.to(self._here.axes.device) for tensor in entry.tensors(self._module))

    def _buffers(self) -> list[torch.Tensor]:
        return [buffer for root in self.roots() for buffer in root.buffers()]

    def _as(self, mode: bool) -> None:
        """The stages are in training, or not, as the module is."""
        if mode != self._mode:
            (self.pipeline.train if mode else self.pipeline.eval)()
            self._mode = mode


def _without_a_batch(gradients: Any, turns: Turns, parameters: Iterable[nn.Parameter]) -> None:
    """Reduces what earlier steps have left, or zeros."""
    parameters = list(parameters)
    if turns.between:
        for parameter in parameters:
            parameter.grad = None
    if turns.now():
        gradients.finish()
        for parameter in parameters:
            parameter.grad = None


def _pipeline(here: Session, module: nn.Module, entry: Entry) -> Pipeline:
    split, decide = training.load("parallel.split"), training.load("parallel.decide")
    module.to("cpu")  # it is cut there; a stage's own part goes to the device
    sizes = [tensor.shape[0] for tensor in entry.tensors(module) if tensor.dim()]
    config = replace(here.config, precision=PRECISIONS[entry.autocast] if entry.autocast else here.config.precision)
    layout = replace(here.layout, microbatch=sizes[0] if sizes else 1)
    example = entry.example(module)
    with torch.random.fork_rng():  # what the script draws next is the same on all ranks
        if here.wishes.auto_partition:
            folder = training.load("paths").output_dir(os.environ, Path.is_dir)
            say = print if here.mesh.is_leader else _nothing
            decider = decide.Decider(config, here.wishes, layout, module, here.mesh, say)
            found = decider.split(example, folder / decide.PARTITION)
        else:
            cutting = here.mesh.on_all(
                lambda: training.load("parallel.cut").cut(module, example, stages=layout.stages, finest=True)
            )
            begins = here.mesh.on_all(
                lambda: manual.begins(cutting, module, here.wishes.default_partition, layout.stages)
            )
            entries = training.load("parallel.profiling").entries(cutting, here.axes.device, config.precision)
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


def _nothing(_: object) -> None:
    """What ranks other than 0 say."""
