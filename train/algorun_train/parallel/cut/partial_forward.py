"""A stage of a model: the user's own forward, entered and left at the calls of two modules.

Before the stage: modules return recorded tensors on meta, so that the code around them needs no memory and no arithmetic.
Each stage computes constants (positions, causal masks) itself. It also computes what depends only on inputs whose values the
code reads (`if mask.all()`): such inputs cross every boundary, and a stage has them from the beginning of its forward.
At the begin of the stage: the meta tensors that it needs are bound to the received tensors. A function that gets a bound
tensor as its argument gets the received tensor instead.
At the begin of the next stage: an exception leaves the forward.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from algorun_train.common.errors import UserError
from algorun_train.parallel.model import recompute
from algorun_train.parallel.model.segments import modules_around
from algorun_train.parallel.model.trees import Arguments, leaves, mapped

from .boundary_tensors import connect, pack, unpack
from .meta import META, TorchFunction, computed, placed
from .recorder import LIKE, RANDOM, Call

R = TypeVar("R")
RECEIVED = "_algorun_received"  # attribute of a meta tensor: the received tensor that it is bound to


@dataclass(frozen=True, slots=True, eq=False)
class ForwardPlace:
    """A module's call at which the model can be left and entered, and where the crossing tensors are found there."""

    name: str
    tick: int
    where: tuple[tuple[str, int], ...]  # (module, number among the tensors of its arguments), one per crossing tensor
    dtypes: tuple[torch.dtype, ...]  # of the crossing tensors
    written: tuple[bool, ...]  # whether the model changes them in place later on
    # Inputs of the model, by number, that cross as well: the forward reads their values before this place, and does so
    # in every later stage.
    inputs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class StagePlan:
    """Which calls of a recorded forward a stage runs, and where it begins and ends."""

    begin: ForwardPlace | None  # None at the model's beginning
    end: ForwardPlace | None  # None at its end
    skipped: tuple[Call, ...]  # modules called before the stage
    inside: tuple[str, ...]  # modules whose calls lie within the stage
    later: tuple[str, ...]  # modules called from the stage's end on
    example: Arguments  # the model's arguments; in later stages on meta
    untouched: frozenset[int] = frozenset()  # entry tensors that no gradient reaches


class _Leave(BaseException):
    """Leaves a forward at a stage's end. Not an Exception: an `except Exception` of the user must not catch it."""

    def __init__(self, outputs: tuple[torch.Tensor, ...]) -> None:
        self.outputs = outputs


class PartialForward(nn.Module):
    """Runs its stage of `model`, a copy made for this stage. Both share their registries of parameters and modules."""

    def __init__(self, model: nn.Module, plan: StagePlan) -> None:
        super().__init__()
        # The same dictionaries: who moves or loads this module's parameters does so in the copy as well.
        self._parameters, self._buffers, self._modules = model._parameters, model._buffers, model._modules
        self._non_persistent_buffers_set = model._non_persistent_buffers_set
        self.training = model.training
        self._plan, self._model = plan, (model,)  # in a tuple: it must not be a submodule
        self._run: _Run | None = None
        self._again: dict[str, bool] = {}
        self._patch(dict(model.named_modules()))

    def train(self, mode: bool = True) -> PartialForward:
        self._model[0].train(mode)
        self.training = mode
        return self

    def forward(self, *received: torch.Tensor) -> object:
        plan = self._plan
        run, outer = _Run(plan, received), self._run
        self._run = run
        try:
            args, kwargs = run.arguments()
            # The first stage has nothing to exchange.
            with run if plan.begin is not None else contextlib.nullcontext():
                result = self._model[0](*args, **kwargs)
                if plan.end is not None or not run.entered:
                    raise UserError(run.missed())
                outputs = tuple(leaves(result := mapped(result, _received)))
        except _Leave as left:
            outputs = result = left.outputs
        finally:
            self._run = outer
        if plan.begin is not None or plan.end is not None:
            connected = iter(
                connect(outputs, received if plan.begin else (), plan.untouched, crossing=plan.end is not None)
            )
            result = mapped(result, lambda _: next(connected))
        return result[0] if plan.end is not None and len(result) == 1 else result

    def _patch(self, modules: dict[str, nn.Module]) -> None:
        plan = self._plan
        begin, end = plan.begin, plan.end
        noted = {name for place in (begin, end) if place is not None for name, _ in place.where}
        for name in plan.inside:
            _wrap(modules[name], functools.partial(self._within, name))
        for name in plan.later:
            if end is None or name != end.name:
                _wrap(modules[name], self._later)
        for name in noted:
            _wrap(modules[name], functools.partial(self._noted, name))
        for call in plan.skipped:
            modules[call.name].forward = functools.partial(self._skip, call)
        for place, act in ((begin, self._enter), (end, self._leave)):
            if place is not None:
                _wrap(modules[place.name], functools.partial(act, place))

    def _noted(self, name: str, forward: Callable[..., object], *args: object, **kwargs: object) -> object:
        if self._run is not None:
            self._run.arguments_of.setdefault(name, leaves((args, kwargs)))
        return forward(*args, **kwargs)

    def _enter(self, place: ForwardPlace, forward: Callable[..., object], *args: object, **kwargs: object) -> object:
        run = self._run
        if run is not None and not run.entered:
            run.arguments_of.setdefault(place.name, leaves((args, kwargs)))
            run.enter(place)
        args, kwargs = mapped((args, kwargs), _received)
        return forward(*args, **kwargs)

    def _leave(self, place: ForwardPlace, forward: Callable[..., object], *args: object, **kwargs: object) -> object:
        run = self._run
        if run is None or not run.entered:
            raise UserError(run.missed() if run is not None else f"unit {place.name} belongs to another stage")
        run.arguments_of.setdefault(place.name, leaves((args, kwargs)))
        made = [_received(tensor) for tensor in run.found(place)]
        raise _Leave(tuple(pack(tensor) for tensor in [*made, *(run.inputs[i] for i in place.inputs)]))

    def _skip(self, call: Call, *args: object, **kwargs: object) -> object:
        """The recorded result on meta of a module that an earlier stage runs, as tensors that are new in every run."""
        given = leaves((args, kwargs)) if any(alias is not None for alias in call.aliases) else []
        aliases = iter(call.aliases)

        def fresh(tensor: torch.Tensor) -> torch.Tensor:
            alias = next(aliases)
            return tensor.detach() if alias is None or alias >= len(given) else given[alias]

        if self._run is None:
            return mapped(call.result, fresh)
        return self._run.unwatched(mapped, call.result, fresh)

    def _later(self, forward: Callable[..., object], *args: object, **kwargs: object) -> object:
        raise UserError(self._run.missed() if self._run is not None else "a unit of another stage was called")

    def entered_or_left(self) -> frozenset[str]:
        """The module whose call the stage begins at, and all modules whose calls contain the stage's begin or end."""
        begin, end = self._plan.begin, self._plan.end
        around = {outer for place in (begin, end) if place for outer in modules_around(place.name)[:-1]}
        return frozenset(around | ({begin.name} if begin else set()))

    def receive_before_hooks(self, modules: Sequence[nn.Module]) -> None:
        """Hooks of these modules get received tensors in the place of those that are bound to them. A hook may replace
        a tensor, and the binding would be lost. Call it after the hooks are there; not with `entered_or_left`."""
        for module in modules:
            module.register_forward_pre_hook(
                lambda _, args, kwargs: mapped((args, kwargs), _received), with_kwargs=True, prepend=True
            )

    def recompute(self, modules: Mapping[str, bool]) -> None:
        """Calls of these modules keep no activations: the backward pass computes them again. Each module must lie within
        this stage. The flag says whether the second pass draws the same random numbers as the first."""
        self._again = {name: flag for name, flag in modules.items() if name in self._plan.inside}
        for name in modules.keys() - self._again.keys():  # deeper, where nothing is watched
            module = self._model[0].get_submodule(name)
            recompute.mark(module, modules[name])
            recompute.in_place(module)

    def _within(self, name: str, forward: Callable[..., object], *args: object, **kwargs: object) -> object:
        run, is_first = self._run, self._plan.begin is None
        if is_first and name not in self._again:
            return forward(*args, **kwargs)  # the first stage has nothing bound, and watches nothing
        if run is not None and not run.entered:
            raise UserError(run.missed())
        if not is_first:
            args, kwargs = mapped((args, kwargs), _received)
        if run is None:  # recomputed in a backward pass
            return forward(*args, **kwargs)
        if name in self._again and torch.is_grad_enabled():
            module = self._model[0].get_submodule(name)
            return run.unwatched(
                recompute.recomputed, forward, module, *args, preserve_rng_state=self._again[name], **kwargs
            )
        return run.unwatched(forward, *args, **kwargs)


class _Run(TorchFunctionMode):
    """One forward of a stage: before its begin every tensor is on meta, after it bound tensors are replaced."""

    def __init__(self, plan: StagePlan, received: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.plan, self.received = plan, tuple(received)
        self.entered = plan.begin is None
        self.depth = 0  # of calls whose arguments have been replaced already
        self.device = self.received[0].device if self.received else torch.device("cpu")
        self.arguments_of: dict[str, list[torch.Tensor]] = {}
        self.inputs: dict[int, torch.Tensor] = {}  # those of the model that this stage has, by number

    def arguments(self) -> Arguments:
        """The model's arguments. In later stages: the inputs that have crossed, and for the others new tensors without
        values, which are bound in this run only."""
        begin, end = self.plan.begin, self.plan.end
        examples = leaves(self.plan.example)
        if begin is None:
            self.inputs = dict(enumerate(self.received))
        else:
            came = zip(begin.inputs, self.received[len(begin.where) :], strict=True)
            self.inputs = {i: unpack(tensor, examples[i].dtype).detach() for i, tensor in came}
        # The model may not write to a tensor that crosses to the next stage, or that is a buffer of the pipeline.
        kept = self.inputs if begin is not None else end.inputs if end is not None else ()
        own = iter(
            (self.inputs[i].clone() if i in kept else self.inputs[i]) if i in self.inputs else example.detach()
            for i, example in enumerate(examples)
        )
        return mapped(self.plan.example, lambda _: next(own))

    def enter(self, place: ForwardPlace) -> None:
        self.entered = True  # from here on functions, the ones below too, work on real tensors
        crossing = zip(self.found(place), self.received[: len(place.where)], place.dtypes, place.written, strict=True)
        for tensor, received, dtype, written in crossing:
            bound = unpack(received, dtype)
            # A received tensor is a leaf of autograd's graph and a buffer of the pipeline: the model may not write to it.
            setattr(tensor, RECEIVED, bound.clone() if written else bound)

    def unwatched(self, work: Callable[..., R], /, *args: object, **kwargs: object) -> R:
        """work(*args, **kwargs), whose arguments are not bound: the functions of torch within it go straight to torch.

        Watching a function takes longer than a small one itself. So this mode is left meanwhile, unless the model has
        entered another mode around the call: only the innermost one can be left.
        """
        innermost = _innermost_mode() is self
        if innermost:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # torch's own
        self.depth += 1
        try:
            return work(*args, **kwargs)
        finally:
            self.depth -= 1
            if innermost:
                self.__enter__()  # type: ignore[no-untyped-call]

    def found(self, place: ForwardPlace) -> list[torch.Tensor]:
        return [self.arguments_of[name][number] for name, number in place.where]

    def missed(self) -> str:
        place = self.plan.end if self.entered else self.plan.begin
        return (
            f"unit {place.name if place else 'at the end'} was not reached in the order that the example showed; "
            "allowed: a forward that calls the same units in training and in evaluation; "
            "fix: cut the model at larger units, or take the branch out of its forward"
        )

    def __torch_function__(
        self, func: TorchFunction, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        kwargs = kwargs or {}
        if self.depth:
            return func(*args, **kwargs)
        if not self.entered:
            return self._before(func, args, kwargs)
        args, kwargs = mapped((args, kwargs), _received)
        if self.plan.begin is not None:  # the code may ask tensors that have not crossed for their device
            if func == _DEVICE and isinstance(args[0], torch.Tensor) and args[0].is_meta:
                return self.device
            args, kwargs = placed(args, kwargs, META, self.device)
        return func(*args, **kwargs)

    def _before(self, func: TorchFunction, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Computes constants on the stage's device. Everything that depends on inputs or weights stays on meta."""
        if func == _DEVICE:
            return self.device
        name = func.__name__
        known = all(not tensor.is_meta and not isinstance(tensor, nn.Parameter) for tensor in leaves((args, kwargs)))
        if name in LIKE:
            return func(*args, **{"device": self.device, **kwargs})
        if known and name not in RANDOM:
            return func(*args, **kwargs)
        return computed(func, args, kwargs)


_DEVICE = torch.Tensor.device.__get__
# torch has no public name for it. Without the private one no mode is left, which costs time and changes no result.
_innermost_mode: Callable[[], object] = getattr(torch.overrides, "_get_current_function_mode", lambda: None)


def _received(tensor: torch.Tensor) -> torch.Tensor:
    """The received tensor that a meta tensor is bound to; any other tensor itself."""
    found: torch.Tensor = getattr(tensor, RECEIVED, tensor)
    return found


def _wrap(module: nn.Module, around: Callable[..., object]) -> None:
    module.forward = functools.partial(around, module.forward)
