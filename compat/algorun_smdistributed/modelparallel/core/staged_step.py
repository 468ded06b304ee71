"""A step with several partitions: the function turned inside out.

On the rank with the first stage it runs up to the model's call, to learn what the model gets; on the rank with the last
stage it is the loss function of the pipeline: the model's call returns the pipeline's output, model.backward keeps the
loss. What it returns there is sent to all ranks. Arguments are those of pp_rank 0, but for what cannot be sent and holds no
tensor, such as a lambda: that is each rank's own.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from algorun_smdistributed.script_types import Given, Result
from algorun_smdistributed.signatures.agreed_pass import Header, agree
from algorun_smdistributed.signatures.fit import Fit
from algorun_smdistributed.signatures.model_call import ModelCall
from algorun_train.common.errors import UserError
from algorun_train.parallel.model import trees
from algorun_train.ranks import generators
from algorun_train.ranks.packing import Packed, Packing

from .answers import Reached, UpToModel, WithOutput
from .own_arguments import Part, Watched, changed, copied, watched
from .script_model import ScriptModel
from .step_function import StepFunction

NO_GRADIENT = "does not require grad"  # torch's words
FIX = (
    "every @smp.step function has to be called on all ranks of a pipeline, also for evaluation; "
    "fix: call it on every rank, not on rank 0 alone"
)


@dataclass(slots=True)
class Mode:
    """What this rank knows of the function in training or evaluation, with or without gradients."""

    trains: bool | None = None
    """whether it calls model.backward; None: not known yet"""
    changes: frozenset[str] | None = None
    """arguments that are changed in place on the rank with the first stage; None: not known yet"""


@dataclass(slots=True)
class StagedBatch:
    """One batch, cut up."""

    parts: list[Part] = field(default_factory=list)
    """named arguments of each microbatch, on the ranks with the first and the last stage"""
    calls: list[ModelCall] = field(default_factory=list)
    """how each microbatch calls the model, on the rank with the first stage"""
    random: list[generators.State] = field(default_factory=list)
    """where torch's random numbers were before each microbatch, if the function draws some before the model's call"""
    before: Watched = field(default_factory=dict)
    """the tensors in `parts` before the function has run, on the rank with the first stage"""
    changes: frozenset[str] = frozenset()
    """arguments that the function has changed in place before it called the model, on the rank with the first stage"""


class StagedStep:
    """Steps of one function. Called on all ranks of a pipeline, equally often."""

    def __init__(self, function: StepFunction) -> None:
        self._function = function
        self._modes: dict[tuple[bool, bool], Mode] = {}
        self._own: frozenset[str] = frozenset()  # arguments that no rank can send to another

    def __call__(self, placed: ScriptModel, arguments: dict[str, Given], detach: bool) -> list[Result]:
        """What the function returns for each microbatch, on all ranks of the pipeline. Unless `detach`, those of the rank
        that has run it keep their graph."""
        context = placed.context
        first, last = context.axes.pp_rank == 0, context.layout.grid.pp - 1
        mode = self._modes.setdefault((placed.module.training, torch.is_grad_enabled()), Mode())
        batch, sent, how = self._agreed(placed, arguments, mode)
        works = context.steps.send(sent, last) if first else []  # where labels are needed
        if placed.is_last and not first:
            received, batch.random, own = context.steps.receive(0)
            arguments = received | self._of_this_rank(context.comm.rank, arguments, own)
        if mode.trains is None:
            mode.trains = self._traced(placed, arguments, batch, how)
        if placed.is_last:
            batch.parts = self._function.split(arguments, context.layout.microbatches)  # they came for this step alone
        results: list[Given] = []
        if mode.trains:
            placed.train_step(batch.calls, functools.partial(self._loss, placed, batch, results), how)
        else:
            assert placed.staged is not None
            results = placed.staged.evaluate(batch.calls, functools.partial(self._result, placed, batch), how)
        for work in works:
            work.wait()
        if first and mode.changes is None:
            mode.changes = self._changed(placed, batch)
        shared: list[Result] = context.steps.share([_detached(each) for each in results], last, context.axes.pp_rank)
        return results if placed.is_last and not detach else shared

    def _agreed(self, placed: ScriptModel, arguments: dict[str, Given], mode: Mode) -> tuple[StagedBatch, Packed, Fit]:
        """The batch on the rank with the first stage, packed for the last one; how it goes through the stages, which are
        there then."""
        context, name, first = placed.context, self._function.name, placed.context.axes.pp_rank == 0
        batch, how, error = StagedBatch(), Fit(), ""
        sent = Packed(b"", [])
        modes = placed.module.training, torch.is_grad_enabled()
        may_train = modes[1] and mode.trains is not False
        try:
            if first:
                batch = self._prepared(placed, arguments, mode)
                how = placed.fits(batch.calls, may_train)
                sent, self._own = packed_batch(context.steps.packing, arguments, batch.random, self._own)
        except UserError as found:
            error = str(found)
        how = placed.agreed_on_plan(agree(context.pipeline, name, Header(*modes, how, error), FIX))
        while how.cut:  # once or twice: the plan may be for another pipeline's signature
            placed.partition(how, batch.calls[0] if first else None)
            mine = placed.fits(batch.calls, may_train, plans=False) if first else Fit()
            how = agree(context.pipeline, name, Header(*modes, mine), FIX)
        return batch, sent, how

    def _prepared(self, placed: ScriptModel, arguments: dict[str, Given], mode: Mode) -> StagedBatch:
        """On the rank with the first stage: the microbatches, and how each calls the model."""
        device = placed.context.axes.device
        parts = copied(self._function.split(arguments, placed.context.layout.microbatches), mode.changes)
        before = watched(parts)
        calls, states = [], []
        for part in parts:
            states.append(generators.state(device))
            answer = UpToModel(device.type)
            try:
                self._function.run(placed, answer, part)
            except Reached:
                pass
            if answer.found is None:
                raise UserError(
                    f"{self._function.name} does not call the model; allowed: @smp.step functions that do; fix: call the "
                    "smp.DistributedModel in it, or drop the decorator"
                )
            calls.append(answer.found)
        changes = changed(before)
        if mode.changes is not None and (late := changes - mode.changes):
            raise UserError(
                f"{self._function.name} changes its arguments {', '.join(sorted(late))} in place, but did not in its first "
                "step; allowed: always or never, with more than one partition; fix: change a copy, such as x = x + 1"
            )
        used = states[0] != generators.state(device)
        return StagedBatch(parts, calls, states if used else [], before, changes)

    def _changed(self, placed: ScriptModel, batch: StagedBatch) -> frozenset[str]:
        """On the rank with the first stage, after the first step: the arguments that have been changed in place."""
        found = changed(batch.before)
        if by_the_model := found - batch.changes:
            placed.context.comm.say(
                f"warning: the model changes the argument {', '.join(sorted(by_the_model))} of {self._function.name} in "
                "place; with more than one partition the function goes on with what it was before the call"
            )
        return found

    def _of_this_rank(self, rank: int, arguments: dict[str, Given], names: frozenset[str]) -> dict[str, Given]:
        if lacking := names - arguments.keys():
            raise UserError(
                f"{self._function.name}: rank {rank} calls it without {', '.join(sorted(lacking))}, which pickle "
                "cannot send it; fix: call it with the same arguments on all ranks"
            )
        return {name: arguments[name] for name in names}

    def _traced(self, placed: ScriptModel, arguments: dict[str, Given], batch: StagedBatch, how: Fit) -> bool:
        """Whether the function calls model.backward, which decides on the schedule: found out by running it once more,
        on copies of its arguments."""
        context, staged = placed.context, placed.staged
        assert staged is not None
        calls, parts = [call.copied() for call in batch.calls[:1]], []
        if placed.is_last:
            parts = copied(self._function.split(arguments, context.layout.microbatches)[:1], None)
        trial = StagedBatch(parts, random=batch.random)
        placed.tracing = True
        try:
            found = staged.evaluate(calls, functools.partial(self._trace, placed, trial), how, only=1)
        finally:
            placed.tracing = False
        last = context.layout.grid.pp - 1
        trains, error = context.steps.share(found[0] if found else None, last, context.axes.pp_rank)
        if error:
            raise UserError(error)
        return bool(trains)

    def _trace(self, placed: ScriptModel, batch: StagedBatch, output: Given, number: int) -> tuple[bool, str]:
        answer = WithOutput(output)
        try:
            self._answered(answer, placed, batch, number)
        except UserError as error:
            return False, str(error)
        except RuntimeError as error:
            if NO_GRADIENT not in str(error):
                raise
            return False, (
                f"{self._function.name}: a backward pass in an @smp.step function by other means than model.backward; "
                "allowed: model.backward(loss), with more than one partition; fix: it in the place of loss.backward()"
            )
        return answer.loss is not None, ""

    def _loss(
        self, placed: ScriptModel, batch: StagedBatch, results: list[Given], output: Given, number: int
    ) -> torch.Tensor:
        answer = WithOutput(output)
        results.append(self._answered(answer, placed, batch, number))
        if answer.loss is None:
            raise UserError(
                f"{self._function.name} has not called model.backward, as it did before; fix: call it always or never"
            )
        return answer.loss

    def _result(self, placed: ScriptModel, batch: StagedBatch, output: Given, number: int) -> Result:
        answer = WithOutput(output)
        result = self._answered(answer, placed, batch, number)
        if answer.loss is not None:
            raise UserError(
                f"{self._function.name} has called model.backward, unlike before; fix: call it always or never"
            )
        return result

    def _answered(self, answer: WithOutput, placed: ScriptModel, batch: StagedBatch, number: int) -> Result:
        if not batch.random:
            return self._function.run(placed, answer, batch.parts[number])
        device = placed.context.axes.device
        with generators.kept(device):
            generators.set_state(device, batch.random[number])
            return self._function.run(placed, answer, batch.parts[number])


def packed_batch(
    packing: Packing, arguments: Mapping[str, Given], random: list[generators.State], own: frozenset[str]
) -> tuple[Packed, frozenset[str]]:
    """A step's arguments for another rank, without those named in `own`, and which names these are from now on.

    What cannot be sent is left out if it holds no tensor: the other rank calls the function too, with its own. A tensor
    could be another one there. UserError for what can neither be sent nor left out.
    """

    def pack(without: frozenset[str]) -> Packed:
        rest = {name: _without_graph(value) for name, value in arguments.items() if name not in without}
        return packing.pack((rest, random, without))

    try:
        return pack(own), own
    except UserError:
        more = own | {name for name, value in arguments.items() if not packing.must_be_sent(value)}
        if more == own:
            raise
        return pack(more), more


def _without_graph(argument: Given) -> Given:
    """Its graph does not travel: with `requires_grad` what autograd has computed would arrive as a weight, which a function
    may not change in place."""
    return trees.mapped(argument, lambda tensor: tensor if tensor.is_leaf else tensor.detach())


def _detached(result: Given) -> Result:
    return trees.mapped(result, lambda tensor: tensor.detach())
