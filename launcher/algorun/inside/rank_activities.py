"""Runs in a process of a rank that uses torch: notes in the rank's record when the script waits for batches, computes,
talks to other ranks or saves, without a change to the script.

rank_steps executes it when torch's optimizers are imported. It puts a function around a few of torch's own, each called
a few times in a step: DataLoader's iterators, the forward of DDP and FSDP modules, FSDP2's waits, the parts of a
pipeline's step, torch.autograd.backward, the collectives that scripts call, and what saves. Modules of the user are not
touched, so pickling, torch.export and torch.fx see what they saw before. Time outside of these functions is not guessed.

Only the process that owns the record notes anything (rank_steps says which), so the first step of a process is not
seen, and only on the thread that has imported torch. As there, no module that a file of the user could replace is
imported, and no exception of this file may reach the user's program.
"""

from __future__ import annotations

import _thread
import sys

TYPE_CHECKING = False  # typing itself must not be imported here
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, Protocol

    Function = Callable[..., Any]  # torch's have every signature
    WhenImported = Callable[[str, Callable[[ModuleType], None]], None]  # of rank_shim

    class Activities(Protocol):
        """Of rank_steps."""

        def enter(self, name: str) -> bool: ...
        def leave(self) -> None: ...
        def say_workers(self, number: int) -> None: ...
        def got_batch(self) -> None: ...


FORWARD = "forward of a whole model"  # without gradients it is evaluation
BACKWARD = "backward of a whole model"  # its end is exchange
BATCH = "a batch of a DataLoader"
BEGIN, END = "begin of a whole FSDP2 model's forward", "end of an FSDP2 module's forward"
LOADER = "begin of a DataLoader"
STATE = "torch.distributed.fsdp._fully_shard._fsdp_state"
PARAMETERS = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
C10D = "torch.distributed.distributed_c10d"
SECOND_NAMES = {"torch.serialization": "torch", C10D: "torch.distributed"}  # the same function is there, too
COLLECTIVES = (
    *("all_reduce", "all_reduce_coalesced", "reduce", "broadcast", "barrier", "monitored_barrier"),
    *("all_gather", "all_gather_into_tensor", "all_gather_coalesced", "all_gather_object", "gather", "gather_object"),
    *("reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "broadcast_object_list"),
    *("all_to_all", "all_to_all_single", "send", "recv", "batch_isend_irecv"),
    *("send_object_list", "recv_object_list"),
)
# Where a function is, its name, and what its time is spent on. A class's method has a dot. A version of torch may lack
# those with an underscore: then their time is not seen.
FUNCTIONS = (
    ("torch.nn.parallel.distributed", "DistributedDataParallel.forward", FORWARD),
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel.forward", FORWARD),
    (STATE, "FSDPState._root_pre_forward", BEGIN),
    (STATE, "FSDPState._post_forward", END),
    (PARAMETERS, "FSDPParamGroup.unshard", "exchange"),
    (PARAMETERS, "FSDPParamGroup.wait_for_unshard", "exchange"),
    (PARAMETERS, "FSDPParamGroup.finalize_backward", "exchange"),
    ("torch.distributed.pipelining.stage", "_PipelineStageBase.forward_one_chunk", "forward"),
    ("torch.distributed.pipelining.stage", "_PipelineStageBase.backward_one_chunk", "backward"),
    ("torch.distributed.pipelining.stage", "_PipelineStageBase.backward_weight_one_chunk", "backward"),
    ("torch.distributed.pipelining.schedules", "_wait_batch_p2p", "exchange"),
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__", BATCH),
    ("torch.utils.data.dataloader", "DataLoader.__iter__", LOADER),  # starts the workers
    ("torch.autograd", "backward", BACKWARD),
    ("torch.serialization", "save", "saving"),
    ("torch.distributed.checkpoint.state_dict_saver", "save", "saving"),
    ("torch.distributed.checkpoint.state_dict_saver", "async_save", "saving"),
    *((C10D, name, "exchange") for name in COLLECTIVES),
)


class Spans:
    """Activities whose begin and end are different functions of torch. Where the end has been left out, because of an
    exception, it follows at the next begin."""

    def __init__(self, activities: Activities) -> None:
        self._activities = activities
        self._open: list[tuple[object, bool]] = []  # whose they are, and whether they have begun

    def begin(self, of: object, activity: str) -> None:
        """Begins an activity of a model or an optimizer."""
        self.end(of)
        self._open.append((of, self._activities.enter(activity)))

    def end(self, of: object) -> None:
        """Ends its activity, and those within it."""
        while any(each is of for each, _ in self._open):
            if self._open.pop()[1]:
                self._activities.leave()


class Watch:
    """Puts functions that note activities around torch's functions."""

    def __init__(self, activities: Activities, note_loss: Callable[[object], None] | None) -> None:
        self._activities, self._thread, self._spans = activities, _thread.get_ident(), Spans(activities)
        self._note_loss = note_loss

    def watch_functions(self, when_imported: WhenImported) -> None:
        """Every function of torch named above, at once or when its module is imported."""
        wanted: dict[str, list[tuple[str, str]]] = {}
        for module, name, activity in FUNCTIONS:
            wanted.setdefault(module, []).append((name, activity))
        for module, functions in wanted.items():
            when_imported(module, self._replacing(functions))

    def _replacing(self, functions: list[tuple[str, str]]) -> Callable[[ModuleType], None]:
        return lambda module: self._replace(module, functions)

    def _replace(self, module: Any, functions: list[tuple[str, str]]) -> None:  # torch has no types for these
        second: Any = sys.modules.get(SECOND_NAMES.get(module.__name__, ""))  # as above
        for name, activity in functions:
            try:
                owner, (*classes, last) = module, name.split(".")
                for each in classes:
                    owner = getattr(owner, each)
                function = getattr(owner, last)
                watched = self._around(module, function, activity)
                setattr(owner, last, watched)
                if getattr(second, last, None) is function:
                    setattr(second, last, watched)
            except AttributeError:
                pass  # this version of torch has no such function: its time is not seen

    def _around(self, module: Any, function: Function, activity: str) -> Function:  # as above
        if activity in (BEGIN, END):
            watched = self._half(function, activity)
        elif activity == BACKWARD:
            watched = self._backward(function)
        elif activity == LOADER:
            watched = self._loader(self._whole(function, "data", False))
        elif activity == BATCH:
            watched = self._batch(self._whole(function, "data", False))
        else:
            return self._whole(function, activity, activity == FORWARD or module.__name__ == C10D)
        return _like(watched, function)

    def _whole(self, function: Function, activity: str, compilable: bool) -> Function:
        """`function`, noted. torch.compile leaves it uncompiled; if `compilable`, it compiles `function` alone, and
        nothing is noted."""
        enter, leave, thread, ident = self._activities.enter, self._activities.leave, self._thread, _thread.get_ident
        torch: Any = sys.modules["torch"]  # not yet whole

        def watched(*args: Any, **named: Any) -> Any:  # as torch's functions
            if (compilable and torch.compiler.is_compiling()) or ident() != thread:
                return function(*args, **named)
            name = activity
            if name == FORWARD:
                name = "forward" if torch.is_grad_enabled() else "evaluation"
            entered = enter(name)
            try:
                return function(*args, **named)
            finally:
                if entered:
                    leave()

        if not compilable:
            watched._torchdynamo_disable = True  # type: ignore[attr-defined]  # as torch._dynamo.disable does
        return _like(watched, function)

    def _loader(self, function: Function) -> Function:
        """A DataLoader's iterator: its number of workers is noted."""
        say, thread, ident = self._activities.say_workers, self._thread, _thread.get_ident

        def watched(loader: Any) -> Any:  # as torch's function
            if ident() == thread and type(loader.num_workers) is int:
                say(loader.num_workers)
            return function(loader)

        watched._torchdynamo_disable = True  # type: ignore[attr-defined]  # as above
        return watched

    def _batch(self, function: Function) -> Function:
        """A DataLoader's next batch: a sign of life, also where the program says itself what it does."""
        got, thread, ident = self._activities.got_batch, self._thread, _thread.get_ident

        def watched(iterator: Any) -> Any:  # as torch's function
            batch = function(iterator)
            if ident() == thread:
                got()
            return batch

        watched._torchdynamo_disable = True  # type: ignore[attr-defined]  # as above
        return watched

    def _half(self, function: Function, half: str) -> Function:
        """FSDP2's hooks before and after a module's forward: those of the outermost module begin and end the model's."""
        spans, thread, ident = self._spans, self._thread, _thread.get_ident
        torch: Any = sys.modules["torch"]  # as above

        def watched(state: Any, *args: Any, **named: Any) -> Any:  # as torch's functions
            if torch.compiler.is_compiling() or ident() != thread:
                return function(state, *args, **named)
            outermost = getattr(state._state_ctx, "iter_forward_root", None)
            if half == BEGIN and outermost is None:
                spans.begin(state, "forward" if torch.is_grad_enabled() else "evaluation")
            try:
                return function(state, *args, **named)
            finally:
                if half == END and outermost is state:
                    spans.end(state)

        return watched

    def _backward(self, function: Function) -> Function:
        """torch.autograd.backward. What is left of it after the last gradient is exchange: DDP and FSDP1 wait there."""
        enter, leave, thread, ident = self._activities.enter, self._activities.leave, self._thread, _thread.get_ident
        note_loss = self._note_loss

        def backward(*args: Any, **named: Any) -> Any:  # as torch's function
            if note_loss is not None:
                try:
                    note_loss(args[0] if args else named.get("tensors"))
                except Exception:
                    pass  # then nothing is known of this loss
            if ident() != thread or not enter("backward"):
                return function(*args, **named)
            waiting: list[bool] = []
            hook = _before_callbacks(
                args[0] if args else named.get("tensors"), lambda: waiting.append(enter("exchange"))
            )
            try:
                return function(*args, **named)
            finally:
                for begun in (*waiting, True):
                    if begun:
                        leave()
                if hook is not None:
                    hook.remove()

        backward._torchdynamo_disable = True  # type: ignore[attr-defined]  # as above
        return backward

    def watch_optimizers(self, optimizer: ModuleType) -> None:
        """Every step of every optimizer, between its hooks."""
        spans, thread, ident = self._spans, self._thread, _thread.get_ident

        def before(stepping: object, *_: object) -> None:
            if ident() == thread:
                spans.begin(stepping, "optimizer")

        def after(stepping: object, *_: object) -> None:
            if ident() == thread:
                spans.end(stepping)

        for hook in (before, after):
            hook._torchdynamo_disable = True  # type: ignore[attr-defined]  # as above
        optimizer.register_optimizer_step_pre_hook(before)
        optimizer.register_optimizer_step_post_hook(after)


def _before_callbacks(tensors: Any, then: Callable[[], None]) -> Any:  # tensors and a hook of torch
    """Calls `then` in the next backward of `tensors`: after the last gradient, before the callbacks that others add
    during it. Returns the hook that does so, to be removed; None where there are no other ranks."""
    torch: Any = sys.modules["torch"]  # as above
    try:
        if not torch.distributed.is_initialized():
            return None
        loss = tensors if isinstance(tensors, torch.Tensor) else tensors[0]
        return loss.register_hook(lambda _: torch.autograd.Variable._execution_engine.queue_callback(then))
    except Exception:
        return None  # such as a tensor without gradients: torch itself says so


def _like(watched: Function, function: Function) -> Function:
    """`watched`, with the name, the text and the signature of `function`: pickle and inspect find what they found."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        try:
            setattr(watched, name, getattr(function, name))
        except (AttributeError, TypeError):
            pass
    watched.__wrapped__ = function  # type: ignore[attr-defined]  # inspect.signature follows it
    return watched


def begin(
    optimizer: ModuleType,
    activities: Activities,
    when_imported: WhenImported,
    note_loss: Callable[[object], None] | None = None,
) -> None:
    """Notes activities from now on. On every process of a rank, before the user's script has used torch.

    `note_loss` is called with what a backward pass begins at.
    """
    watch = Watch(activities, note_loss)
    watch.watch_optimizers(optimizer)
    watch.watch_functions(when_imported)
