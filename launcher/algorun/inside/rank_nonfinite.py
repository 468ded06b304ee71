"""Runs in a process of a rank that uses torch: finds the first loss, gradient or weight that is not finite, and tells the
supervisor its step and its name.

rank_steps executes it with rank_activities, unless ALGORUN_NONFINITE or ALGORUN_HOOKS is off. It looks before each optimizer
step: at the losses whose backward pass has run since the last step, and at the norms of gradients and weights. The norms
that clip_grad_norm_ computes are taken as they are, before it clips. Others are computed in one of so many steps that they
cost SHARE of the time.

Nobody waits for a GPU: what was noted in some steps is asked for in a later one, and the step that was first is then known.
On the CPU each loss is asked at once; where it is not finite, all weights are looked at, so the step that has broken
one is known as well.

With ALGORUN_NONFINITE=skip the ranks agree before each optimizer step whether a gradient of any of them is not finite, and
leave the step out together if so. That is a collective of one number, and on a GPU a wait for it.

A step that a GradScaler skips is no finding: it looks for a scale at which gradients are finite. As in rank_steps, no module
that a file of the user could replace is imported, and no exception of this file may reach the user's program but that of steps
which are left out.
"""

from __future__ import annotations

import _socket
import os
import sys
import time

TYPE_CHECKING = False  # typing itself must not be imported here
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    Torch = Any  # what torch makes: it has no types here
    WhenImported = Callable[[str, Callable[[ModuleType], None]], None]  # of rank_shim

SHARE = 0.001  # of the time, for norms; what is done in each step takes half as much of a step of 50 ms
MOST_BETWEEN = 1000  # steps from one in which norms are computed to the next one
GPU_BYTES_PER_S = 1e12  # that a norm reads; an H100 reads 3e12
ASK_EVERY = 16  # steps of a GPU after which it is asked
MOST_KEPT = 16 * 1024  # norms of steps that were not asked for yet
MOST_LOSSES = 64  # between two optimizer steps
MOST_IN_A_ROW = 100  # steps that are left out: then the model learns nothing
LOSS, GRADIENT, WEIGHT = 0, 1, 2  # in the order in which a step makes them
SECOND_NAMES = {"torch.nn.utils.clip_grad": "torch.nn.utils"}


class Norms:
    """Norms of some parameters, or of their gradients. `tensors` are scalars, in the order of `parameters`."""

    __slots__ = ("parameters", "tensors")

    def __init__(self, parameters: list[Torch], tensors: list[Torch]) -> None:
        self.parameters, self.tensors = parameters, tensors


class Moment:
    """What was noted before one optimizer step; `step` is its number."""

    __slots__ = ("at", "gradients", "losses", "place", "since", "since_at", "skipped", "step", "weights")

    def __init__(self, step: int, losses: list[Torch], gradients: Norms | None, place: str, skipped: Torch) -> None:
        self.step, self.losses, self.gradients, self.place, self.skipped = step, losses, gradients, place, skipped
        self.weights: Norms | None = None
        self.since = step  # weights that are not finite now were still finite before this step
        self.at = self.since_at = time.monotonic()


class FirstNonFinite:
    """The first value that is not finite: its step, what it is of, and the names of what it was found in.

    `earliest` is below `step` where a weight may have become so in a step between them: nobody has looked.
    """

    __slots__ = ("at", "earliest", "names", "of", "place", "step", "total", "value")

    def __init__(self, moment: Moment, step: int, of: int, value: float, names: list[str], total: int) -> None:
        self.step, self.of, self.names, self.total = step, of, names, total
        self.earliest = step
        self.value = "nan" if value != value else "inf"
        self.place, self.at = moment.place, moment.at


class NonFinite:
    """Watches the optimizer steps of this process until the first finding. `count` says how many steps the rank has made."""

    def __init__(self, count: Callable[[], int], tell: Callable[[FirstNonFinite], None]) -> None:
        self._count, self._tell = count, tell
        self.steps = 0  # calls of an optimizer that this process has begun
        self.place = ""  # in the data, if the program says it
        self._done = False
        self._losses: list[Torch] = []
        self._clipped: Norms | None = None
        self._moments: list[Moment] = []  # that nobody has asked for yet
        self._kept = 0  # norms in them
        self._flag: Torch = None  # the answer of a GPU
        self._asked: Torch = None  # the event after which it is there, and how many moments it is about
        self._every, self._since = 1, 0  # one of so many steps has norms; steps since the last one
        self._step_at, self._cost_s = time.monotonic(), 0.0
        self._had_loss = False  # the step before
        self._looked = self._before = (
            1,
            self._step_at,
        )  # the last step whose weights were looked at, and the one before; when

    @property
    def step(self) -> int:
        """The number of the optimizer step that is about to be made."""
        counted = self._count()
        return counted + 1 if counted >= 0 else self.steps

    def say_place(self, place: str) -> None:
        """Where the batch of this step is in the data."""
        self.place = place

    def note_loss(self, tensors: Torch) -> None:
        """The backward pass of these begins; a scalar among them is a loss."""
        if self._done:
            return
        for each in (tensors,) if hasattr(tensors, "numel") else tuple(tensors):
            if each.numel() == 1 and each.is_floating_point() and len(self._losses) < MOST_LOSSES:
                self._losses.append(_local(each.detach()).reshape(()))

    def forget(self) -> None:
        """A GradScaler has skipped the step: what led to it does not count."""
        self._losses, self._clipped = [], None

    def note_norms(self, parameters: list[Torch], norms: list[Torch]) -> None:
        """The program has computed these norms of its gradients, before it clips them by other means than clip_grad_norm_."""
        self.clipped(Norms(parameters, norms))

    def clipped(self, norms: Norms) -> None:
        """Norms of gradients that the program has computed itself."""
        self._clipped = norms

    def offer(self, norms: Norms) -> None:
        """Norms of gradients that are there anyway. Those from before they were clipped say more."""
        self._clipped = self._clipped or norms

    def before_step(self, optimizer: Torch) -> None:
        """An optimizer is about to make a step."""
        self.steps += 1
        if self._done:
            return
        torch: Torch = sys.modules["torch"]
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return
        now = time.monotonic()
        step_s, self._step_at = now - self._step_at, now
        step = self.step
        moment = Moment(step, self._losses, self._clipped, self.place, getattr(optimizer, "found_inf", None))
        moment.since, moment.since_at = self._before if self._had_loss else self._looked
        self._had_loss, self._before = bool(self._losses), (step, now)
        self._losses, self._clipped, self.place = [], None, ""
        self._since += 1
        if self._since >= self._every:
            self._look(moment, optimizer)
            spent_s = self._cost_s + time.monotonic() - now
            self._every = min(MOST_BETWEEN, int(spent_s / max(step_s - spent_s, 1e-6) / SHARE) + 1)
            self._since, self._cost_s = 0, 0.0
        on_gpu = _on_gpu(moment)
        if not on_gpu:
            self._judge_now(moment, optimizer)
            return
        self._moments.append(moment)
        self._kept += sum(len(each.tensors) for each in (moment.gradients, moment.weights) if each is not None)
        self._ask_gpu(torch)

    def _look(self, moment: Moment, optimizer: Torch) -> None:
        parameters = _parameters(optimizer)
        if moment.gradients is None:
            moment.gradients = self.norms_of(parameters, gradients=True)
        moment.weights = self.norms_of(parameters, gradients=False)
        self._looked = moment.step, moment.at

    def norms_of(self, parameters: list[Torch], *, gradients: bool) -> Norms:
        """Of all that hold numbers. On a GPU the largest value; on the CPU the Euclidean norm, which is ten times faster."""
        torch: Torch = sys.modules["torch"]
        by_device: dict[Torch, tuple[list[Torch], list[Torch]]] = {}
        for parameter in parameters:
            tensor = parameter.grad if gradients else parameter.detach()
            if tensor is None:
                continue
            tensor = _local(tensor)
            if tensor.numel() and (tensor.is_floating_point() or tensor.is_complex()):
                held = by_device.setdefault(tensor.device, ([], []))
                held[0].append(parameter)
                held[1].append(tensor)
        found = Norms([], [])
        with torch.no_grad():
            for device, (held_by, tensors) in by_device.items():
                found.parameters += held_by
                if device.type == "cpu":
                    found.tensors += _checked(torch._foreach_norm(tensors), tensors)
                else:
                    found.tensors += torch._foreach_norm(tensors, float("inf"))
                    size = sum(each.numel() * each.element_size() for each in tensors)
                    self._cost_s += size / GPU_BYTES_PER_S
        return found

    # -- what was noted is asked for -----------------------------------------------------------------------------------

    def _judge_now(self, moment: Moment, optimizer: Torch) -> None:
        """On the CPU every value is there."""
        if moment.weights is None and any(not _finite(each) for each in moment.losses):
            moment.weights = self.norms_of(_parameters(optimizer), gradients=False)
        self._end_with(_first(moment))

    def _ask_gpu(self, torch: Torch) -> None:
        """Asks a GPU now and then whether all is finite, and takes its answer once it is there."""
        if self._asked is not None:
            event, until = self._asked
            if not event.query():
                return
            self._asked = None
            if not self._flag.item():
                self._end_with(next(filter(None, map(_first, self._moments)), None))
            del self._moments[:until]
            self._kept = 0
        elif len(self._moments) >= ASK_EVERY or self._kept >= MOST_KEPT:
            tensors = [each for moment in self._moments for each in moment.losses]
            for name in ("gradients", "weights"):  # what has become NaN stays so
                held = (getattr(moment, name) for moment in reversed(self._moments))
                tensors += next((each.tensors for each in held if each is not None), [])
            with torch.no_grad():
                if self._flag is None:  # memory that a GPU can write to while this process goes on
                    self._flag = torch.empty((), dtype=torch.bool, pin_memory=True)
                self._flag.copy_(_all_finite(torch, tensors), non_blocking=True)
                event = torch.cuda.Event()
                event.record()
            self._asked = event, len(self._moments)

    def _end_with(self, finding: FirstNonFinite | None) -> None:
        if finding is not None:
            self._done = True
            self._moments, self._losses = [], []
            self._tell(finding)


class Skips:
    """Leaves optimizer steps out on all ranks. `steps`: how many; `row`: how many since the last one that was made.

    Each rank has to make the same optimizer steps: they meet before each of them, in the group of all ranks.
    """

    def __init__(self, watch: NonFinite) -> None:
        self._watch = watch
        self.steps = self.row = 0

    def norms(self, optimizer: Torch) -> Norms | None:
        """Those of the gradients that an optimizer is about to make a step with; None if the step is not looked at."""
        torch: Torch = sys.modules["torch"]
        if getattr(optimizer, "found_inf", None) is not None:  # a GradScaler leaves it out itself
            return None
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():  # nothing can be asked then
            return None
        return self._watch.norms_of(_parameters(optimizer), gradients=True)

    def meet(self, optimizer: Torch, norms: Norms) -> None:
        """Removes the gradients if one of any rank is not finite. Raises RuntimeError, on all ranks, after MOST_IN_A_ROW steps."""
        if not self._is_broken(norms.tensors):
            self.row = 0
            return
        for each in _parameters(optimizer):
            each.grad = None  # an optimizer passes over it, with its moments and its count of steps
        self.steps, self.row = self.steps + 1, self.row + 1
        if self.row >= MOST_IN_A_ROW:
            raise RuntimeError(
                f"{self.row} optimizer steps in a row were left out, because gradients were not finite "
                "(ALGORUN_NONFINITE=skip): the model learns nothing"
            )
        if os.environ.get("RANK", "0") == "0" and not self.steps & (self.steps - 1):  # the 1st, 2nd, 4th, 8th, ..
            total = f"{self.steps} so far" if self.steps > 1 else "the first one"
            sys.stderr.write(
                f"algorun: warning: step {self._watch.step} is left out on all ranks, a gradient is not finite ({total})\n"
            )
            sys.stderr.flush()

    @staticmethod
    def _is_broken(norms: list[Torch]) -> bool:
        """Whether a gradient of any rank is not finite: the same answer on all of them."""
        torch: Torch = sys.modules["torch"]
        flag = (~_all_finite(torch, norms)).float() if norms else torch.zeros(())
        group = torch.distributed
        if group.is_available() and group.is_initialized() and group.get_world_size() > 1:
            kinds = {each.type for each in group.group.WORLD._device_types}
            on_gpu = "cuda" in kinds and (
                "cpu" not in kinds or flag.is_cuda or (not norms and torch.cuda.is_initialized())
            )
            flag = flag.to("cuda" if on_gpu else "cpu").reshape(1)
            with torch.no_grad():
                group.all_reduce(flag, op=group.ReduceOp.MAX)
        return bool(flag.item())


def _parameters(optimizer: Torch) -> list[Torch]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _local(tensor: Torch) -> Torch:
    """What this rank holds of a tensor: its shard of a DTensor, the values of a sparse one."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    return tensor._values() if tensor.layout is sys.modules["torch"].sparse_coo else tensor


def _on_gpu(moment: Moment) -> bool:
    held = moment.gradients or moment.weights
    tensors = moment.losses or (held.tensors if held is not None else [])
    return bool(tensors) and tensors[0].device.type == "cuda"


def _checked(norms: Torch, tensors: list[Torch]) -> list[Torch]:
    """The norms; the sum of squares may have been too large for numbers that are finite."""
    checked = list(norms)
    for at, norm in enumerate(checked):
        if not _finite(norm) and tensors[at].isfinite().all():
            checked[at] = norm.new_zeros(())
    return checked


def _finite(scalar: Torch) -> bool:
    value: float = abs(scalar.item())
    return value == value and value != float("inf")


def _all_finite(torch: Torch, tensors: list[Torch]) -> Torch:
    """A scalar on the GPU of the first: whether all these scalars are finite."""
    kinds: dict[Torch, list[Torch]] = {}
    for each in tensors:
        kinds.setdefault((each.device, each.dtype), []).append(each)
    flags = [torch.stack(each).isfinite().all() for each in kinds.values()]
    return flags[0] if len(flags) == 1 else torch.stack([each.to(flags[0].device) for each in flags]).all()


def _first(moment: Moment) -> FirstNonFinite | None:
    """What was not finite first, of one step. Its weights are those that the step before has made."""
    if moment.weights is not None and (found := _of_norms(moment, moment.step - 1, WEIGHT, moment.weights)):
        found.earliest, found.at = min(found.step, moment.since), moment.since_at
        return found
    if moment.skipped is not None and float(moment.skipped):
        return None
    for each in moment.losses:
        if not _finite(each):
            found = FirstNonFinite(moment, moment.step, LOSS, each.item(), [], len(moment.losses))
            if moment.weights is None:
                found.earliest, found.at = moment.step - 1, moment.since_at
            return found
    return _of_norms(moment, moment.step, GRADIENT, moment.gradients) if moment.gradients is not None else None


def _of_norms(moment: Moment, step: int, of: int, norms: Norms) -> FirstNonFinite | None:
    broken = [at for at, each in enumerate(norms.tensors) if not _finite(each)]
    if not broken:
        return None
    names = _names([norms.parameters[at] for at in broken], [norms.parameters[broken[0]]])
    return FirstNonFinite(moment, step, of, norms.tensors[broken[0]].item(), names, len(norms.tensors))


def _names(parameters: list[Torch], told: list[Torch]) -> list[str]:
    """The names of parameters: those of the module that has most of all, without what wrappers put before them."""
    import gc  # built in

    module_type = sys.modules["torch"].nn.Module
    known: dict[int, str] = {}
    for each in gc.get_objects():
        if issubclass(type(each), module_type):  # some objects warn where they are asked for their class
            named = {id(parameter): name for name, parameter in each.named_parameters()}
            if len(named) > len(known) and id(told[0]) in named:
                known = named
    return [
        known.get(id(each), f"a parameter of shape {tuple(each.shape)}")
        .removeprefix("module.")
        .replace("_orig_mod.", "")
        for each in parameters
    ]


# -- around torch's functions ------------------------------------------------------------------------------------------


class Clip:
    """Takes the norms that clip_grad_norm_ computes."""

    def __init__(self, watch: NonFinite) -> None:
        self._watch = watch

    def replace(self, module: Torch) -> None:
        """`module` is torch.nn.utils.clip_grad."""
        function = module.clip_grad_norm_
        norms_during = self._norms_during
        torch: Torch = sys.modules["torch"]

        def clip_grad_norm_(parameters: Torch, *args: Torch, **named: Torch) -> Torch:
            if torch.compiler.is_compiling():
                return function(parameters, *args, **named)
            held = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            with_gradient = [each for each in held if each.grad is not None]
            return norms_during(with_gradient, lambda: function(held, *args, **named))

        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(clip_grad_norm_, name, getattr(function, name, None))
        clip_grad_norm_.__wrapped__ = function  # type: ignore[attr-defined]  # inspect.signature follows it
        module.clip_grad_norm_ = clip_grad_norm_
        second: Torch = sys.modules.get(SECOND_NAMES[module.__name__])
        if getattr(second, "clip_grad_norm_", None) is function:
            second.clip_grad_norm_ = clip_grad_norm_

    def _norms_during(self, held: list[Torch], call: Callable[[], Torch]) -> Torch:
        """What `call` returns. Meanwhile the norms that torch computes of the gradients of these parameters are noted."""
        torch: Torch = sys.modules["torch"]
        of_many, of_one = torch._foreach_norm, torch.linalg.vector_norm
        computed: list[tuple[Torch, Torch]] = []

        def foreach_norm(tensors: Torch, *args: Torch, **named: Torch) -> Torch:
            norms = of_many(tensors, *args, **named)
            computed.append((tensors, norms))
            return norms

        def vector_norm(tensor: Torch, *args: Torch, **named: Torch) -> Torch:  # of a DTensor, and last of all norms
            norm = of_one(tensor, *args, **named)
            computed.append(((tensor,), (norm,)))
            return norm

        torch._foreach_norm, torch.linalg.vector_norm = foreach_norm, vector_norm
        try:
            return call()
        finally:
            torch._foreach_norm, torch.linalg.vector_norm = of_many, of_one
            _quietly(self._note, held, computed)

    def _note(self, held: list[Torch], computed: list[tuple[Torch, Torch]]) -> None:
        if not computed:
            return
        if len(computed[0][0]) == len(held):  # of one device and type: in their order
            self._watch.clipped(Norms(held, list(computed[0][1])))
        else:
            by_id = {id(each.grad): each for each in held}  # clipping has changed them in place
            pairs = [(by_id[id(t)], n) for each in computed for t, n in zip(*each) if id(t) in by_id]  # noqa: B905
            self._watch.clipped(Norms([each for each, _ in pairs], [_local(norm) for _, norm in pairs]))


def watch_scaler(module: Torch, watch: NonFinite) -> None:
    """`module` is torch.amp.grad_scaler: a step that GradScaler skips is forgotten."""
    function = module.GradScaler.step

    def step(self: Torch, optimizer: Torch, *args: Torch, **named: Torch) -> Torch:
        before = watch.steps
        try:
            return function(self, optimizer, *args, **named)
        finally:
            if watch.steps == before:
                watch.forget()

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(step, name, getattr(function, name, None))
    step.__wrapped__ = function  # type: ignore[attr-defined]  # as above
    module.GradScaler.step = step


def _quietly(function: Callable[..., object], *args: object) -> None:
    try:
        function(*args)
    except Exception:
        pass  # then this step is not looked at


def _send(finding: FirstNonFinite) -> None:
    """Tells this host's supervisor. Never blocks."""
    fields = (
        "nonfinite",
        os.environ.get("ALGORUN_RANK", ""),
        str(finding.step),
        str(finding.earliest),
        str(finding.of),
        finding.value,
        finding.names[0] if finding.names else "",
        str(len(finding.names)),
        str(finding.total),
        finding.place,
        repr(finding.at),
        os.environ.get("ALGORUN_NONFINITE", "") or "warn",
    )
    data = "\0".join(" ".join(each.replace("\0", " ").split("\n"))[:300] for each in fields).encode("utf-8", "replace")
    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    try:
        channel.setblocking(False)
        channel.sendto(data, os.environ["ALGORUN_RUN_DIR"] + "/raised")
    finally:
        channel.close()


def step_hook(watch: NonFinite, skips: Skips | None = None) -> Callable[[Torch, Torch, Torch], Torch]:
    """What torch calls before each step of an optimizer, with the step's arguments.

    A step with a closure (Lightning, LBFGS) computes loss and gradients itself: `watch` looks after the closure.
    """

    def look(stepping: Torch) -> None:
        norms = skips.norms(stepping) if skips is not None else None
        if norms is not None:
            watch.offer(norms)
        _quietly(watch.before_step, stepping)
        if skips is not None and norms is not None:
            skips.meet(stepping, norms)

    def before(stepping: Torch, args: Torch, named: Torch) -> Torch:
        closure = named.get("closure")
        if callable(closure):
            return args, {**named, "closure": _watched(closure, lambda: look(stepping), watch)}
        if len(args) > 1 and callable(args[1]):
            return (args[0], _watched(args[1], lambda: look(stepping), watch), *args[2:]), named
        look(stepping)
        return None

    before._torchdynamo_disable = True  # type: ignore[attr-defined]  # as torch._dynamo.disable does
    return before


def _watched(closure: Callable[..., Torch], look: Callable[[], None], watch: NonFinite) -> Callable[..., Torch]:
    """`closure`, and `look` after its first evaluation. Others try weights that no step has made: they do not count."""
    looked = False

    def evaluate(*args: Torch, **named: Torch) -> Torch:
        nonlocal looked
        value = closure(*args, **named)
        if looked:
            watch.forget()
        else:
            looked = True
            look()
        return value

    return evaluate


def begin(optimizer: Torch, count: Callable[[], int], when_imported: WhenImported) -> NonFinite:
    """Watches from now on. `optimizer` is torch.optim.optimizer."""
    watch = NonFinite(count, _send)
    skips = Skips(watch) if os.environ.get("ALGORUN_NONFINITE") == "skip" else None
    optimizer.register_optimizer_step_pre_hook(step_hook(watch, skips))
    when_imported("torch.nn.utils.clip_grad", Clip(watch).replace)
    when_imported("torch.amp.grad_scaler", lambda module: watch_scaler(module, watch))
    return watch
