"""Stages for every signature that a model is called with: planned for the first, cut again for others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import nn

from algorun_smdistributed.ranks.meeting import RankMeeting
from algorun_smdistributed.replicas.part import ReplicaOptions
from algorun_train.parallel.cut import any_module, found_cut, module_copy
from algorun_train.parallel.model import recompute
from algorun_train.parallel.model.model_stages import ModelStages
from algorun_train.parallel.model.precision import AUTOCAST
from algorun_train.parallel.model.segments import TensorSpec
from algorun_train.parallel.partition import profiling
from algorun_train.parallel.run.options import RunOptions
from algorun_train.parallel.run.pipeline import Pipeline
from algorun_train.parallel.run.process_groups import Axes
from algorun_train.ranks import generators

from . import independent_samples, recut
from .fit import Stages
from .model_call import ModelCall, Signature

KEPT = 8  # signatures beside the first one: each has receive buffers for all microbatches
TOLD = 5
OTHER = "a call of the model with other arguments"

Tried: TypeAlias = tuple[bytes, tuple[tuple[TensorSpec, ...], ...], dict[bool, bool]]
"""a cut, packed; what enters each stage, and last the output; whether samples are independent, by mode"""


@dataclass(frozen=True, slots=True)
class StageSetting:
    """Where and how a model's stages run, whatever the signature."""

    axes: Axes
    meeting: RankMeeting
    """of the ranks of this pipeline"""
    run: RunOptions
    """the precision is that of calls without an autocast of their own"""
    replicas: ReplicaOptions


@dataclass(frozen=True, slots=True)
class CutPlan:
    """How a model is cut for its first signature. Equal on all ranks of the job."""

    call: ModelCall
    """on the CPU"""
    split: ModelStages
    independent: dict[bool, bool]
    """as in `Stages`"""


class PipelinesBySignature:
    """The pipelines of one model. All ranks of a pipeline add and use signatures in the same order.

    Iterating begins with the first one, then the latest used.
    """

    def __init__(self, module: nn.Module, plan: CutPlan, setting: StageSetting) -> None:
        """On all ranks of the job."""
        self._module, self._setting = module, setting
        self.first = self._made(0, plan, None)
        self._others: list[Stages] = []
        self.total = 0
        """signatures after the first one, so far"""

    def __iter__(self) -> Iterator[Stages]:
        return iter([self.first, *reversed(self._others)])

    def add(self, call: ModelCall) -> None:
        """Stages for another signature, cut at the places of the first one. On all ranks of the pipeline, with one `call`.

        Raises UserError on all of them if the model cannot be cut there for this call.
        """
        begun, axes, meeting = time.monotonic(), self._setting.axes, self._setting.meeting
        with generators.kept(axes.device):
            told = meeting.on_all(lambda: self._tried(call) if axes.pp_rank == 0 else None, OTHER, patient=True)[0]
            assert told is not None  # the first rank has tried
            plans: list[CutPlan] = []  # a rank's own stay there
            meeting.on_all(lambda: plans.append(self._cut_as(told, call)), OTHER)
        self.total += 1
        self._others = [*self._others[1 - KEPT :], self._made(self.total, plans[0], self.first.pipeline)]
        self._tell(call.signature(self._module), time.monotonic() - begun)

    def _tried(self, call: ModelCall) -> Tried:
        """Where the model is cut for this call. By one rank of the pipeline for the others: it runs the whole model."""
        whole = module_copy.on_cpu(self._module)
        independent = independent_samples.by_mode(whole, call, self._setting.axes.device)
        cutting = recut.recut(whole, call.example(whole), self.first.split.segments())
        entries = profiling.entries(cutting.over(self._module), self._setting.axes.device, self._run(call).precision)
        return found_cut.packed(cutting.found), tuple(entries), independent

    def _cut_as(self, told: Tried, call: ModelCall) -> CutPlan:
        """This rank's own model, cut where the first rank has cut its own."""
        packed, entries, independent = told
        example = call.example(self._module)
        cutting = any_module.Cut(self._module, example, found_cut.unpacked(packed, self._module, example))
        return CutPlan(call, ModelStages(cutting, tuple(range(len(entries) - 1)), entries), independent)

    def _made(self, number: int, plan: CutPlan, beside: Pipeline | None) -> Stages:
        pipeline = Pipeline(plan.split, self._setting.axes, self._run(plan.call), beside=beside)
        parts = {index: stage.module for index, stage in pipeline.stages.items()}
        recompute.in_stages(self._module, plan.split.stages_of_modules(), parts)
        return Stages(number, plan.call.signature(self._module), plan.independent, pipeline, plan.split)

    def _run(self, call: ModelCall) -> RunOptions:
        return replace(self._setting.run, precision=precision_of(call, self._setting.run))

    @contextlib.contextmanager
    def used(self, number: int, mode: bool) -> Iterator[Stages]:
        """The stages of this number for a pass in training, or not: with the buffers as the latest pass has left them."""
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

    def _tell(self, signature: Signature, seconds: float) -> None:
        if self._setting.axes.pp_rank == 0 and self.total <= TOLD:
            mine, first, fix = signature.difference(self.first.signature)
            print(
                f"warning: the model is called with {mine}, at first with {first}: cut again in {seconds:.1f} s, as for "
                f"each new form of its arguments; fix, where that costs time: {fix}"
                + ("; further ones are not told" if self.total == TOLD else ""),
                flush=True,
            )


def precision_of(call: ModelCall, run: RunOptions) -> str:
    """The name of what the stages of a call compute in: its own autocast's, else that of `run`."""
    names: dict[torch.dtype | None, str] = {dtype: name for name, dtype in AUTOCAST.items()}
    return names[call.autocast] if call.autocast else run.precision
