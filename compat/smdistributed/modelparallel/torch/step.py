"""@smp.step: a function of one batch, run once per microbatch across the stages of the model.

With several partitions the function is turned inside out. On the rank with the first stage it runs up to the model's
call, to learn what the model gets; on the rank with the last stage it is the loss function of the pipeline: the model's
call returns the pipeline's output, model.backward keeps the loss. What it returns there is sent to all ranks.
Arguments are those of pp_rank 0, but for what cannot be sent and holds no tensor, such as a lambda: that is each rank's own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from algorun_train.errors import UserError
from algorun_train.parallel import trees
from algorun_train.ranks import generators
from smdistributed.script_types import Given, Result

from . import microbatches, wire
from .agreement import agree, header
from .calls import Reached, UpToModel, WithOutput
from .entry import Entry
from .fitting import Fit
from .model import DistributedModel
from .session import Session, session

NO_GRADIENT = "does not require grad"  # torch's words


@dataclass(slots=True)
class Prepared:
    """One batch, cut up: named arguments and, on the rank with the first stage, what the model gets of each part."""

    parts: list[dict[str, Given]]
    entries: list[Entry]
    random: list[tuple[bytes, ...]]
    """where torch's random numbers were before each part, on the CPU and on the GPU, where the function has used them up
    to the model's call"""


def step(
    function: Callable[..., Result] | None = None,
    *,
    non_split_inputs: Sequence[str] | None = None,
    input_split_axes: Mapping[str, int] | None = None,
    detach_outputs: bool = True,
) -> Result:
    """Decorates a function of one forward (and backward) pass; see smp.step in AWS's documentation.

    `non_split_inputs` are arguments that every microbatch gets whole, `input_split_axes` the batch axes of arguments
    where it is not 0. Tensors that the function returns come as StepOutput, on all ranks of the pipeline, detached
    unless `detach_outputs` is False.
    """
    if function is None:
        return lambda given: Step(given, non_split_inputs or (), input_split_axes or {}, detach_outputs)
    return Step(function, non_split_inputs or (), input_split_axes or {}, detach_outputs)


class Step:
    """A decorated function. Called on all ranks with the same dp_rank, equally often."""

    def __init__(
        self, function: Callable[..., Result], whole: Sequence[str], axes: Mapping[str, int], detach: bool
    ) -> None:
        functools.update_wrapper(self, function)
        self._function, self._signature = function, inspect.signature(function)
        self._name = getattr(function, "__qualname__", type(function).__name__)
        self._whole, self._axes, self._detach = frozenset(whole), dict(axes), detach
        self._trains: dict[tuple[bool, bool], bool] = {}
        self._own: frozenset[str] = frozenset()  # arguments that no rank can send to another
        known = set(self._signature.parameters)
        if unknown := (self._whole | set(self._axes)) - known:
            raise UserError(
                f"@smp.step of {self._name}: {', '.join(sorted(unknown))} is none of its arguments; "
                f"allowed: {', '.join(sorted(known)) or 'none'}; fix: name an argument"
            )

    def __get__(self, instance: Given, owner: Given = None) -> Result:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Given, **kwargs: Given) -> Result:
        here = session()
        if here.model is None:
            raise UserError(
                f"{self._name}: there is no model; fix: model = smp.DistributedModel(model) before the first step"
            )
        bound = self._signature.bind(*args, **kwargs)
        if here.layout.grid.pp == 1:
            return self._alone(here, here.model, bound)
        return self._staged(here, here.model, bound)

    # -- one partition: the function as it stands -------------------------------------------------------------------

    def _alone(self, here: Session, model: DistributedModel, bound: inspect.BoundArguments) -> Result:
        parts = self._split(bound.arguments)
        with model.whole_step() as answer:
            results = [self._run(answer, model, part) for part in parts]
        return microbatches.joined(results, self._detach)

    # -- several partitions: inside out -----------------------------------------------------------------------------

    def _staged(self, here: Session, model: DistributedModel, bound: inspect.BoundArguments) -> Result:
        first = here.axes.pp_rank == 0
        prepared, mine, error = Prepared([], [], []), Fit(), ""
        batch: tuple[bytes, list[torch.Tensor]] = b"", []
        may_train = torch.is_grad_enabled() and self._trains.get(_mode(model), True)
        try:
            if first:
                prepared = self._prepared(here, model, bound.arguments)
                mine = model.fits(prepared.entries, may_train)
                batch, self._own = wire.packed_batch(bound.arguments, prepared.random, self._own)
        except UserError as found:
            error = str(found)
        how = model.agreed_on_plan(agree(header(self._name, model.training, mine, error)))
        while how.cut:  # once or twice: the plan may be for another pipeline's form
            model.partition(how, prepared.entries[0] if first else None)
            mine = model.fits(prepared.entries, may_train, plans=False) if first else Fit()
            how = agree(header(self._name, model.training, mine, ""))
        sent = wire.send(batch, here.layout.grid.pp - 1) if first else []  # where labels are needed
        if model.is_last and not first:
            arguments, prepared.random, own = wire.receive(0)
            prepared.parts = self._split(arguments | self._of_this_rank(bound.arguments, own))
        trains = self._traced(here, model, prepared, how)
        results: list[Given] = []
        if trains:
            model.train_step(prepared.entries, functools.partial(self._loss, model, prepared, results), how)
        else:
            results = model.evaluate(prepared.entries, functools.partial(self._result, model, prepared), how)
        for work in sent:
            work.wait()
        shared = wire.share([_detached(each) for each in results], here.layout.grid.pp - 1)
        kept = results if model.is_last and not self._detach else shared
        return microbatches.joined(kept, self._detach)

    def _prepared(self, here: Session, model: DistributedModel, arguments: dict[str, Given]) -> Prepared:
        """On the rank with the first stage: the parts, and what the model gets of each."""
        parts = self._split(arguments)
        entries, states = [], []
        for part in parts:
            states.append(generators.state(here.axes.device))
            answer = UpToModel(here.axes.device.type)
            try:
                self._run(answer, model, part)
            except Reached:
                pass
            if answer.args is None:
                raise UserError(
                    f"{self._name} does not call the model; allowed: @smp.step functions that do; fix: call the "
                    "smp.DistributedModel in it, or drop the decorator"
                )
            entries.append(Entry(answer.args, answer.kwargs, answer.autocast))
        used = states[0] != generators.state(here.axes.device)
        return Prepared(parts, entries, states if used else [])

    def _traced(self, here: Session, model: DistributedModel, prepared: Prepared, how: Fit) -> bool:
        """Whether the function calls model.backward, which decides on the schedule: found out by running it once."""
        key = _mode(model)
        if key not in self._trains:
            here.tracing = True
            try:
                found = model.evaluate(prepared.entries, functools.partial(self._trace, model, prepared), how, only=1)
            finally:
                here.tracing = False
            trains, error = wire.share(found[0] if found else None, here.layout.grid.pp - 1)
            if error:
                raise UserError(error)
            self._trains[key] = trains
        return self._trains[key]

    def _of_this_rank(self, arguments: dict[str, Given], names: frozenset[str]) -> dict[str, Given]:
        if lacking := names - arguments.keys():
            raise UserError(
                f"{self._name}: rank {session().comm.rank} calls it without {', '.join(sorted(lacking))}, which pickle "
                "cannot send it; fix: call it with the same arguments on all ranks"
            )
        return {name: arguments[name] for name in names}

    def _trace(self, model: DistributedModel, prepared: Prepared, output: Given, number: int) -> tuple[bool, str]:
        answer = WithOutput(output)
        try:
            self._answered(answer, model, prepared, number)
        except UserError as error:
            return False, str(error)
        except RuntimeError as error:
            if NO_GRADIENT not in str(error):
                raise
            return False, (
                f"{self._name}: a backward pass in an @smp.step function by other means than model.backward; allowed: "
                "model.backward(loss), with more than one partition; fix: it in the place of loss.backward()"
            )
        return answer.loss is not None, ""

    def _loss(
        self, model: DistributedModel, prepared: Prepared, results: list[Given], output: Given, number: int
    ) -> torch.Tensor:
        answer = WithOutput(output)
        results.append(self._answered(answer, model, prepared, number))
        if answer.loss is None:
            raise UserError(
                f"{self._name} has not called model.backward, as it did before; fix: call it always or never"
            )
        return answer.loss

    def _result(self, model: DistributedModel, prepared: Prepared, output: Given, number: int) -> Result:
        answer = WithOutput(output)
        result = self._answered(answer, model, prepared, number)
        if answer.loss is not None:
            raise UserError(f"{self._name} has called model.backward, unlike before; fix: call it always or never")
        return result

    def _answered(self, answer: WithOutput, model: DistributedModel, prepared: Prepared, number: int) -> Result:
        if not prepared.random:
            return self._run(answer, model, prepared.parts[number])
        device = session().axes.device
        with generators.kept(device):
            generators.set_state(device, prepared.random[number])
            return self._run(answer, model, prepared.parts[number])

    # -- both ---------------------------------------------------------------------------------------------------------

    def _split(self, arguments: dict[str, Given]) -> list[dict[str, Given]]:
        return microbatches.split(arguments, session().layout.microbatches, self._whole, self._axes)

    def _run(self, answer: Given, model: DistributedModel, part: dict[str, Given]) -> Result:
        bound = self._signature.bind_partial()
        bound.arguments.update(part)
        with model.answered_by(answer):
            return self._function(*bound.args, **bound.kwargs)


def _mode(model: DistributedModel) -> tuple[bool, bool]:
    """What decides whether a function trains."""
    return model.training, torch.is_grad_enabled()


def _detached(result: Given) -> Result:
    return trees.mapped(result, lambda tensor: tensor.detach())
