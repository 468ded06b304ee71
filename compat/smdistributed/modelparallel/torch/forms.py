"""Stages for every form of arguments that the model is called with: planned for the first, cut again for others."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias, TypeVar

import torch
from torch import nn

from algorun_train.errors import UserError
from algorun_train.options import folders, for_parallel
from algorun_train.options.job_options import PipelineJobOptions
from algorun_train.parallel.cut import any_module, found_cut, module_copy, on_one_rank, recut
from algorun_train.parallel.layout import Layout
from algorun_train.parallel.model_partitioner import PARTITION, ModelPartitioner
from algorun_train.parallel.model_stages import ModelStages
from algorun_train.parallel.partition import profiling
from algorun_train.parallel.precision import AUTOCAST
from algorun_train.parallel.run.pipeline import Pipeline
from algorun_train.parallel.segments import Cutting, TensorSpec
from algorun_train.ranks import generators

from . import checkpointing, manual
from .entry import Entry, Form, samples_stand_alone
from .fitting import Made
from .messages import CPU, gathered
from .session import Session

T = TypeVar("T")

KEPT = 8  # forms beside the first one: each has receive buffers for all microbatches
TOLD = 5
OTHER_FORM = "a call of the model with other arguments"


Entries: TypeAlias = tuple[tuple[TensorSpec, ...], ...]
"""what enters each segment, and last the model's output"""

Tried: TypeAlias = tuple[bytes, Entries, dict[bool, bool]]
"""a cut, packed; its entries; whether samples stand alone in training, and in evaluation"""


class Forms:
    """Those of one pipeline. All of its ranks add and use them in the same order.

    Iterating begins with the first one, then the latest used.
    """

    def __init__(self, here: Session, module: nn.Module, example: Entry) -> None:
        self._here, self._module = here, module
        with generators.kept(here.axes.device):  # what the script draws next is the same on all ranks
            alone = here.comm.from_leader(lambda: _alone(module, example), on_one_rank.LIMIT)
            split = _planned(here, module, example)
        self.first = self._made(0, example, alone, split, None)
        self._others: list[Made] = []
        self.total = 0

    def __iter__(self) -> Iterator[Made]:
        return iter([self.first, *reversed(self._others)])

    def add(self, example: Entry) -> None:
        """Stages for another form, cut where those of the first one are. On all ranks of the pipeline."""
        begun, form = time.monotonic(), example.form(self._module)
        with generators.kept(self._here.axes.device):
            told = self._on_all(lambda: self._tried(example) if self._here.axes.pp_rank == 0 else None, patient=True)[0]
            assert told is not None  # the first rank has tried
            cuts: list[ModelStages] = []  # a rank's own stay there

            def cut() -> None:
                cuts.append(self._cut_as(told, example))

            self._on_all(cut)
        alone, found = told[-1], cuts[0]
        self.total += 1
        made = self._made(self.total, example, alone, found, self.first.pipeline)
        self._others = [*self._others[1 - KEPT :], made]
        self._tell(form, time.monotonic() - begun)

    def _on_all(self, work: Callable[[], T], patient: bool = False) -> list[T]:
        """What every rank of the pipeline gets from its `work`, by rank; an error of one of them is that of all.

        `patient` as in `together`.
        """
        result, error, broken = None, None, None
        try:
            result = work()
        except UserError as failed:
            error = str(failed)
        except Exception as failed:  # the model's own, for these arguments
            error, broken = f"rank {self._here.comm.rank} failed: {type(failed).__name__}: {failed}", failed
        rows = gathered((result, error), self._here.axes.pp_group, CPU, OTHER_FORM, patient)
        if broken:
            raise broken
        if first := next((text for _, text in rows if text), None):
            raise UserError(first)
        return [value for value, _ in rows]

    def _cut_as(self, told: Tried, example: Entry) -> ModelStages:
        """This rank's own model, cut where the first rank has cut its own."""
        packed, entries, _ = told
        arguments = example.example(self._module)
        cutting = any_module.Cut(self._module, arguments, found_cut.unpacked(packed, self._module, arguments))
        return ModelStages(cutting, tuple(range(len(entries) - 1)), entries)

    def _tried(self, example: Entry) -> Tried:
        """Where this form is cut, what enters the stages, and whether its samples stand alone: all whole-model passes.
        By one rank of the pipeline for the others."""
        whole = module_copy.on_cpu(self._module)
        alone = _alone(whole, example)
        cutting = recut.recut(whole, example.example(whole), self.first.split.segments())
        entries = _entries(self._here, cutting.over(self._module), _config(self._here, example))
        return found_cut.packed(cutting.found), entries, alone

    @contextlib.contextmanager
    def used(self, number: int, mode: bool) -> Iterator[Made]:
        """Those of this number for a pass in training, or not: with the buffers as the latest pass has left them."""
        made = next(each for each in self if each.number == number)
        if made is not self.first:
            self._others = [*(each for each in self._others if each is not made), made]
            made.pipeline.take_buffers(self.first.pipeline)
        if mode != made.trains:
            (made.pipeline.train if mode else made.pipeline.eval)()
            made.trains = mode
        yield made
        if made is not self.first:
            self.first.pipeline.take_buffers(made.pipeline)

    def _made(
        self, number: int, example: Entry, alone: dict[bool, bool], split: ModelStages, beside: Pipeline | None
    ) -> Made:
        here = self._here
        layout, config = _layout(here, self._module, example), _config(here, example)
        options = for_parallel.run_options(config, layout, mean=True)
        pipeline = Pipeline(split, here.axes, options, beside=beside)
        parts = {index: stage.module for index, stage in pipeline.stages.items()}
        checkpointing.in_stages(self._module, _stages(split), parts)
        return Made(number, example.form(self._module), alone, pipeline, split)

    def _tell(self, form: Form, seconds: float) -> None:
        if self._here.axes.pp_rank == 0 and self.total <= TOLD:
            mine, first, fix = form.difference(self.first.form)
            print(
                f"warning: the model is called with {mine}, at first with {first}: cut again in {seconds:.1f} s, as for "
                f"each new form of its arguments; fix, where that costs time: {fix}"
                + ("; further ones are not told" if self.total == TOLD else ""),
                flush=True,
            )


def precisions() -> dict[str, torch.dtype | None]:
    """Names of what autocast computes in."""
    return AUTOCAST


def autocast_of(here: Session, name: str) -> torch.dtype | None:
    """What the stages compute under: the autocast of the model's call, else the job's."""
    return getattr(torch, name) if name else precisions()[here.config.precision]


def _config(here: Session, entry: Entry) -> PipelineJobOptions:
    names = {dtype: name for name, dtype in precisions().items()}
    return replace(here.config, precision=names[entry.autocast] if entry.autocast else here.config.precision)


def _layout(here: Session, module: nn.Module, entry: Entry) -> Layout:
    return replace(here.layout, microbatch=entry.samples(module) or 1)


def _alone(module: nn.Module, entry: Entry) -> dict[bool, bool]:
    return {mode: samples_stand_alone(module, entry, mode) for mode in (True, False)}


def _planned(here: Session, module: nn.Module, entry: Entry) -> ModelStages:
    """Where to cut the model, decided on all ranks of the job together."""
    example, config, layout = entry.example(module), _config(here, entry), _layout(here, module, entry)
    if here.wishes.auto_partition:
        folder = folders.output_folder(os.environ, Path.is_dir)
        options = for_parallel.partition_options(config, here.wishes)
        partitioner = ModelPartitioner(module, layout, options, here.comm)
        return partitioner.partition(example, folder / PARTITION).stages
    fewer = here.wishes.fewer_stages
    cutting = on_one_rank.cut_by_leader(
        here.comm,
        module,
        example,
        lambda: any_module.cut(module, example, stages=layout.stages, finest=True, fewer=fewer),
    )
    default = here.wishes.default_partition
    begins, warning = here.comm.on_all(lambda: manual.placed(cutting, module, default, layout.stages))
    if warning:
        manual.say(warning)
    entries = here.comm.from_leader(lambda: _entries(here, cutting, config), on_one_rank.LIMIT)
    return ModelStages(cutting, tuple(begins), entries)


def _entries(here: Session, cutting: Cutting, config: PipelineJobOptions) -> Entries:
    return tuple(profiling.entries(cutting, here.axes.device, config.precision))


def _stages(found: ModelStages) -> dict[str, set[int]]:
    """The stages that each module's units lie in, by the module's name."""
    stages: dict[str, set[int]] = {}
    for index, segments in enumerate(found.segments()):
        for segment in segments:
            for unit in segment.units:
                for name in ("", *manual.around(unit)):
                    stages.setdefault(name, set()).add(index)
    return stages
