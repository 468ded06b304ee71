"""@smp.step: a function of one batch, run once per microbatch across the stages of the model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from algorun_smdistributed.modelparallel.core.script_model import ScriptModel
from algorun_smdistributed.modelparallel.core.staged_step import StagedStep
from algorun_smdistributed.modelparallel.core.step_function import StepFunction
from algorun_smdistributed.script_types import Given, Result
from algorun_train.common.errors import UserError

from .session import session
from .step_output import joined


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

    def decorated(given: Callable[..., Result]) -> Step:
        return Step(given, StepFunction(given, non_split_inputs or (), input_split_axes or {}), detach_outputs)

    return decorated if function is None else decorated(function)


class Step:
    """A decorated function. Called on all ranks with the same dp_rank, equally often."""

    def __init__(self, given: Callable[..., Result], function: StepFunction, detach: bool) -> None:
        functools.update_wrapper(self, given)
        self._function, self._staged, self._detach = function, StagedStep(function), detach

    def __get__(self, instance: Given, owner: Given = None) -> Result:
        """A method, unless its first argument has another name than `self`: AWS's decorator makes no methods, and example
        scripts have step functions in a class that they call with all arguments."""
        return functools.partial(self, instance) if self._function.is_method and instance is not None else self

    def __call__(self, *args: Given, **kwargs: Given) -> Result:
        placed = session().model
        if placed is None:
            raise UserError(
                f"{self._function.name}: there is no model; fix: model = smp.DistributedModel(model) before the first step"
            )
        arguments = self._function.arguments(args, kwargs)
        if placed.context.layout.grid.pp == 1:
            return joined(self._alone(placed, arguments), self._detach)
        return joined(self._staged(placed, arguments, self._detach), self._detach)

    def _alone(self, placed: ScriptModel, arguments: dict[str, Given]) -> list[Result]:
        """With one partition: the function as it stands, for each microbatch."""
        parts = self._function.split(arguments, placed.context.layout.microbatches)
        with placed.whole_step() as answer:
            return [self._function.run(placed, answer, part) for part in parts]
