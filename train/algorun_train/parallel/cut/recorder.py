"""Records one forward pass: which modules are called when, and which tensors go from where to where."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from algorun_train.parallel.model import recompute
from algorun_train.parallel.model.segments import TensorSpec
from algorun_train.parallel.model.trees import leaves, mapped

from .meta import TorchFunction, computed, needs_values
from .module_copy import copy_modules, names

# Functions that read a tensor's values although they return no tensor.
READS = frozenset({"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "equal", "allclose"})
# Functions that return something else at every call; all others compute the same from the same.
RANDOM = frozenset(
    """rand randn randint randperm rand_like randn_like randint_like normal normal_ uniform_ random_ bernoulli bernoulli_
    exponential_ cauchy_ geometric_ log_normal_ multinomial poisson dropout dropout_ dropout1d dropout2d dropout3d
    alpha_dropout feature_alpha_dropout rrelu rrelu_ gumbel_softmax scaled_dot_product_attention
    empty empty_like empty_strided new_empty""".split()  # noqa: SIM905
)
# Functions that take shape, dtype and device from a tensor, never its values.
LIKE = frozenset(["zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"])


@dataclass(slots=True, eq=False)
class Value:
    """A tensor of the forward pass: when it came into being and when its values were last used, in ticks."""

    spec: TensorSpec
    made: int
    # Buffers, by name, and inputs of the model, by number, that it is computed from, if from nothing else: every stage
    # that has them computes it again. None if it depends on parameters or random numbers.
    sources: frozenset[str | int] | None
    last: int = -1
    written: int = -1  # last change in place


@dataclass(slots=True, eq=False)
class Call:
    """One call of a module. `begin` and `end` are ticks."""

    name: str
    parent: Call | None
    begin: int
    arguments: list[Value]
    end: int = -1
    result: object = None  # as returned, tensors on meta
    outcome: list[Value | None] = field(default_factory=list)  # the tensors of the result
    aliases: list[int | None] = field(default_factory=list)  # tensor of the result -> argument that it is, if one
    children: list[Call] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Recording:
    """A forward pass: calls in order (the model itself first), its tensors, and when each parameter was used."""

    calls: list[Call]
    values: list[Value]
    made: list[int]  # ticks at which glue or modules made tensors
    uses: dict[str, list[int]]  # first global name of a parameter or buffer -> ticks
    changed: set[str]  # buffers that the pass has written to
    reads: list[tuple[int, frozenset[int]]]  # ticks at which Python has read values, and the inputs they come from
    anew: frozenset[str] = frozenset()  # modules that every stage calls itself, see `value_dependence.varying`
    recomputed: dict[str, bool] = field(default_factory=dict)  # `recompute.marks`: the forward itself may mark modules
    _once: dict[str, Call] = field(default_factory=dict)

    def once(self) -> dict[str, Call]:
        """Modules called exactly once, without the model itself, in execution order."""
        if not self._once:
            counts = Counter(call.name for call in self.calls)
            self._once = {call.name: call for call in self.calls[1:] if counts[call.name] == 1 and call.name}
        return self._once

    def known(self, value: Value | None, given: Collection[int] = ()) -> bool:
        """Whether every stage that has the inputs `given` computes this value itself. False for a parameter or buffer
        (None). With no inputs given: whether the value is the same in every pass."""
        if value is None or value.sources is None:
            return False
        return all(s in given if isinstance(s, int) else s not in self.changed for s in value.sources)

    def skippable(self, call: Call, given: Collection[int] = ()) -> bool:
        """Whether later stages that have the inputs `given` skip a call. They do not if they can compute all of its
        results from these inputs: then they call the module themselves."""
        if call.name in self.anew:
            return False
        return not call.outcome or not all(self.known(value, given) for value in call.outcome)

    def skipped(self, tick: int, given: Collection[int] = ()) -> list[Call]:
        """The calls before `tick`, some within others, that later stages skip."""
        return [call for call in self.once().values() if call.end < tick and self.skippable(call, given)]

    def needed(self, tick: int) -> frozenset[int]:
        """The numbers of the inputs whose values the code reads before `tick`, outside of skipped modules."""
        given: frozenset[int] = frozenset()
        while True:
            hidden = self.skipped(tick, given)
            looks = [(at, inputs) for at, inputs in self.reads if at < tick]
            for call in self.once().values():
                if call.name in self.anew and call.end < tick:
                    sources = [s for value in call.outcome if value is not None for s in value.sources or ()]
                    looks.append((call.begin, frozenset(s for s in sources if isinstance(s, int))))
            seen = [inputs for at, inputs in looks if not any(call.begin <= at <= call.end for call in hidden)]
            found = given.union(*seen)
            if found == given:
                return given
            given = found

    def live(self, tick: int, given: Collection[int] = ()) -> list[Value]:
        """The values made before `tick` and used after it, which cross there beside the inputs `given`."""
        hidden = [(call.begin, call.end) for call in self.skipped(tick, given)]
        return [
            value
            for value in self.values
            if value.made < tick <= value.last
            and not (self.known(value, given) and not any(begin <= value.made <= end for begin, end in hidden))
        ]


def record(model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> Recording:
    """Runs a copy of `model` in training mode on its arguments and returns what was seen. The model stays as it is."""
    owner = names(model)
    own: dict[int, str] = {}

    def share(tensor: torch.Tensor) -> torch.Tensor:
        new = tensor if isinstance(tensor, nn.Parameter) else tensor.detach().clone()
        own[id(new)] = owner[id(tensor)][0]
        return new

    copied = copy_modules(model, share)
    if not copied.training:
        copied.train()
    recorder = _Recorder(own)
    for name, module in copied.named_modules():
        if not isinstance(module, torch.jit.ScriptModule):
            module.forward = functools.partial(_called, recorder, name, module.forward)
    versions = {name: (buffer, buffer._version) for name, buffer in copied.named_buffers()}
    args, kwargs = mapped((args, kwargs), lambda tensor: tensor.detach().clone())
    for number, tensor in enumerate(leaves((args, kwargs))):
        recorder.value(tensor, frozenset([number]))
    with recorder:
        output = copied(*args, **kwargs)
    after = dict(copied.named_buffers())
    changed = {n for n, (old, version) in versions.items() if after.get(n) is not old or old._version != version}
    before = dict(model.named_buffers())
    changed |= {
        n for n, (now, _) in versions.items() if not _equal(now, before[n])
    }  # kernels of norms do not count versions
    recorder.tick += 1
    for tensor in leaves(output):
        recorder.use(tensor)
    return Recording(
        recorder.calls,
        recorder.values,
        recorder.made,
        recorder.uses,
        changed,
        recorder.reads,
        recomputed=recompute.marks(copied),
    )


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())  # NaN is NaN


class _Recorder(TorchFunctionMode):
    def __init__(self, own: dict[int, str]) -> None:
        super().__init__()
        self.tick = 0
        self.paused = False  # while the recorder itself looks at tensors
        self.own = own
        self.uses: dict[str, list[int]] = {name: [] for name in own.values()}
        self.calls: list[Call] = []
        self.stack: list[Call] = []
        self.values: list[Value] = []
        self.made: list[int] = []
        self.reads: list[tuple[int, frozenset[int]]] = []

    def __torch_function__(
        self, func: TorchFunction, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        self.tick += 1
        used = leaves((args, kwargs))
        versions = [tensor._version for tensor in used]
        sources = self.sources(func.__name__, used)
        inputs = frozenset(source for source in sources or () if isinstance(source, int))
        if inputs and _looks(func, args, kwargs):
            self.reads.append((self.tick, inputs))
        result = func(*args, **kwargs)
        outcome = leaves(result)
        if outcome or func.__name__ in READS:
            for tensor, version in zip(used, versions, strict=True):
                self.use(tensor, sources, written=tensor._version != version)
        for tensor in outcome:
            self.value(tensor, sources)
        if outcome:
            self.made.append(self.tick)
        return result

    def sources(self, function: str, used: list[torch.Tensor]) -> frozenset[str | int] | None:
        """See `Value.sources`, for what a function computes from the tensors `used`."""
        if function in RANDOM:
            return None
        found: frozenset[str | int] = frozenset()
        for tensor in used if function not in LIKE else ():
            name = self.own.get(id(tensor))
            if name is not None:
                if isinstance(tensor, nn.Parameter):
                    return None
                found |= {name}
                continue
            # One that nothing has made here existed before: an attribute of a module, or a global.
            value = self.value(tensor, frozenset())
            if value is None or value.sources is None:
                return None
            found |= value.sources
        return found

    def value(self, tensor: torch.Tensor, sources: frozenset[str | int] | None = None) -> Value | None:
        """The value of a tensor; None for a parameter or buffer. A tensor that was not seen before is made now."""
        if id(tensor) in self.own:
            return None
        known = getattr(tensor, "_algorun_value", None)
        # Tensors that the model keeps may have a value of another recording.
        if known is None or known[0] is not self:
            value = Value(TensorSpec.of(tensor), self.tick, sources)
            tensor._algorun_value = (self, value)  # type: ignore[attr-defined]  # our own mark on torch's object
            self.values.append(value)
            return value
        seen: Value = known[1]
        return seen

    def use(self, tensor: torch.Tensor, sources: frozenset[str | int] | None = None, written: bool = False) -> None:
        name = self.own.get(id(tensor))
        if name is not None:
            self.uses[name].append(self.tick)
            return
        value = self.value(tensor)
        assert value is not None
        value.last = self.tick
        if written:
            value.written = self.tick
            value.sources = sources


def _looks(func: TorchFunction, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Whether a function reads values: it fails on tensors that have shapes but no values."""
    if func.__name__ in READS:
        return True
    try:
        if func.__name__ != "__get__":  # of an attribute, such as a shape
            computed(func, args, kwargs)
    except Exception as error:
        return needs_values(error)
    return False


def _called(recorder: _Recorder, name: str, forward: Callable[..., object], *args: object, **kwargs: object) -> object:
    given = leaves((args, kwargs))
    recorder.paused = True
    values = [recorder.value(tensor) or Value(TensorSpec.of(tensor), -1, None) for tensor in given]
    recorder.paused = False
    recorder.tick += 1
    parent = recorder.stack[-1] if recorder.stack else None
    call = Call(name, parent, recorder.tick, values)
    recorder.calls.append(call)
    recorder.stack.append(call)
    if parent is not None:
        parent.children.append(call)
    try:
        result = forward(*args, **kwargs)
    finally:
        recorder.stack.pop()
    recorder.tick += 1
    call.end = recorder.tick
    recorder.paused = True
    if not call.children:  # a leaf may use its arguments unseen, in a function of C++ for instance
        for value in values:
            value.last = max(value.last, call.begin)
    positions = {id(tensor): place for place, tensor in reversed(list(enumerate(given)))}
    outcome = leaves(result)
    call.outcome = [recorder.value(tensor) for tensor in outcome]
    call.aliases = [positions.get(id(tensor)) for tensor in outcome]
    call.result = mapped(result, lambda tensor: tensor.detach().to("meta"))
    recorder.paused = False
    return result
