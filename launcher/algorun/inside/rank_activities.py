"""Runs in a process of a rank that uses torch: notes in the rank's record when the script waits for batches, computes,
talks to other ranks or saves, without a change to the script.

rank_steps executes it when torch's optimizers are imported. It puts a function around a few of torch's own, each called
a few times in a step: DataLoader's iterators, the forward of DDP and FSDP modules, FSDP2's waits, the parts of a
pipeline's step, torch.autograd.backward, the collectives that scripts call, and what saves. Modules of the user are not touched,
so pickling, torch.export and torch.fx see what they saw before. What none of these functions sees is not guessed.

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

    class Activities(Protocol):
        """Of rank_steps."""

        def enter(self, name: str) -> bool: ...
        def leave(self) -> None: ...


FORWARD = "forward of a whole model"  # without gradients it is evaluation
PARAMETERS = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
# Where a function is, its name, and what its time is spent on. A class's method has a dot. A version of torch may lack
# those with an underscore: then their time is not seen.
FUNCTIONS = (
    ("torch.nn.parallel.distributed", "DistributedDataParallel.forward", FORWARD),
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel.forward", FORWARD),
    (PARAMETERS, "FSDPParamGroup.unshard", "exchange"),
    (PARAMETERS, "FSDPParamGroup.wait_for_unshard", "exchange"),
    (PARAMETERS, "FSDPParamGroup.finalize_backward", "exchange"),
    ("torch.distributed.pipelining.stage", "_PipelineStageBase.forward_one_chunk", "forward"),
    ("torch.distributed.pipelining.stage", "_PipelineStageBase.backward_one_chunk", "backward"),
    ("torch.distributed.pipelining.stage", "_PipelineStageBase.backward_weight_one_chunk", "backward"),
    ("torch.distributed.pipelining.schedules", "_wait_batch_p2p", "exchange"),
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__", "data"),
    ("torch.utils.data.dataloader", "DataLoader.__iter__", "data"),  # starts the workers
    ("torch.autograd", "backward", "backward"),
    ("torch.serialization", "save", "saving"),
    ("torch.distributed.checkpoint.state_dict_saver", "save", "saving"),
    ("torch.distributed.checkpoint.state_dict_saver", "async_save", "saving"),
)
# The same function under a second name.
SECOND_NAMES = {"torch.serialization": "torch", "torch.distributed.distributed_c10d": "torch.distributed"}
C10D = "torch.distributed.distributed_c10d"
COLLECTIVES = (
    *("all_reduce", "all_reduce_coalesced", "reduce", "broadcast", "barrier", "monitored_barrier"),
    *("all_gather", "all_gather_into_tensor", "all_gather_coalesced", "all_gather_object", "gather", "gather_object"),
    *("reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "broadcast_object_list"),
    *("all_to_all", "all_to_all_single", "send", "recv", "batch_isend_irecv"),
    *("send_object_list", "recv_object_list"),
)


class Watch:
    """Puts functions that note activities around torch's functions."""

    def __init__(self, activities: Activities) -> None:
        self._activities, self._thread = activities, _thread.get_ident()

    def whole(self) -> None:
        """Every function of torch that has been imported; the rest when its module is imported."""
        later: dict[str, list[tuple[str, str]]] = {}
        for module, name, activity in FUNCTIONS:
            if module in sys.modules:
                self._replace(module, name, activity)
            else:
                later.setdefault(module, []).append((name, activity))
        if C10D in sys.modules:
            for name in COLLECTIVES:
                self._replace(C10D, name, "exchange")
        if later:
            sys.meta_path.insert(0, Later(later, self._replace))

    def _replace(self, module: str, name: str, activity: str) -> None:
        try:
            owner: Any = sys.modules[module]  # torch has no types for these
            *classes, name = name.split(".")
            for each in classes:
                owner = getattr(owner, each)
            function = getattr(owner, name)
            if activity == FORWARD:
                watched = self._forward(function)
            else:
                watched = (self._compiled if module == C10D else self._watched)(function, activity)
            setattr(owner, name, watched)
            second: Any = sys.modules.get(SECOND_NAMES.get(module, ""))  # as above
            if getattr(second, name, None) is function:
                setattr(second, name, watched)
        except Exception:
            pass  # this version of torch has no such function: its time is not seen

    def _watched(self, function: Function, activity: str) -> Function:
        """A function that torch.compile never compiles."""
        enter, leave, thread, ident = self._activities.enter, self._activities.leave, self._thread, _thread.get_ident

        def watched(*args: Any, **named: Any) -> Any:  # as torch's functions
            if ident() != thread or not enter(activity):
                return function(*args, **named)
            try:
                return function(*args, **named)
            finally:
                leave()

        watched._torchdynamo_disable = True  # type: ignore[attr-defined]  # as torch._dynamo.disable does
        return _like(watched, function)

    def _compiled(self, function: Function, activity: str) -> Function:
        """A function that torch.compile may meet: it then finds `function` alone, and no time is noted."""
        enter, leave, thread, ident = self._activities.enter, self._activities.leave, self._thread, _thread.get_ident
        torch: Any = sys.modules["torch"]  # as above

        def watched(*args: Any, **named: Any) -> Any:  # as torch's functions
            if torch.compiler.is_compiling() or ident() != thread or not enter(activity):
                return function(*args, **named)
            try:
                return function(*args, **named)
            finally:
                leave()

        return _like(watched, function)

    def _forward(self, function: Function) -> Function:
        """As _compiled; a forward without gradients is evaluation."""
        enter, leave, thread, ident = self._activities.enter, self._activities.leave, self._thread, _thread.get_ident
        torch: Any = sys.modules["torch"]  # as above

        def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:  # as torch's functions
            if torch.compiler.is_compiling() or ident() != thread:
                return function(self, *inputs, **kwargs)
            if not enter("forward" if torch.is_grad_enabled() else "evaluation"):
                return function(self, *inputs, **kwargs)
            try:
                return function(self, *inputs, **kwargs)
            finally:
                leave()

        return _like(forward, function)

    def watch_optimizers(self, optimizer: ModuleType) -> None:
        """Every step of every optimizer, between its hooks."""
        activities, thread, ident = self._activities, self._thread, _thread.get_ident
        entered: list[bool] = []

        def before(*_: object) -> None:
            if ident() == thread:
                if len(entered) > 8:  # steps that raised had no hook afterwards
                    entered.clear()
                entered.append(activities.enter("optimizer"))

        def after(*_: object) -> None:
            if ident() == thread and entered and entered.pop():
                activities.leave()

        for hook in (before, after):
            hook._torchdynamo_disable = True  # type: ignore[attr-defined]  # as above
        optimizer.register_optimizer_step_pre_hook(before)
        optimizer.register_optimizer_step_post_hook(after)


def _like(watched: Function, function: Function) -> Function:
    """`watched`, with the name, the text and the signature of `function`: pickle and inspect find what they found."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        try:
            setattr(watched, name, getattr(function, name))
        except (AttributeError, TypeError):
            pass
    watched.__wrapped__ = function  # type: ignore[attr-defined]  # inspect.signature follows it
    return watched


class Later:
    """Stands in sys.meta_path and replaces functions of modules that are imported later."""

    def __init__(self, wanted: dict[str, list[tuple[str, str]]], replace: Callable[[str, str, str], None]) -> None:
        self._wanted, self._replace = wanted, replace

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:  # the import system's own types
        """The module's own spec, whose loader replaces the functions once it has executed the module."""
        wanted = self._wanted.pop(name, None)
        if wanted is None:
            return None
        if not self._wanted and self in sys.meta_path:
            sys.meta_path.remove(self)
        for finder in list(sys.meta_path):
            spec = finder.find_spec(name, path, target) if finder is not self else None
            if spec is not None:
                self._follow(name, spec.loader, wanted)
                return spec
        return None

    def _follow(self, name: str, loader: Any, wanted: list[tuple[str, str]]) -> None:  # any loader
        try:
            execute = loader.exec_module

            def execute_and_replace(module: ModuleType) -> None:
                loader.__dict__.pop("exec_module", None)
                execute(module)
                for function, activity in wanted:
                    self._replace(name, function, activity)

            loader.exec_module = execute_and_replace
        except Exception:
            pass


def begin(optimizer: ModuleType, activities: Activities) -> None:
    """Notes activities from now on. On every process of a rank, before the user's script has used torch."""
    watch = Watch(activities)
    watch.watch_optimizers(optimizer)
    watch.whole()
