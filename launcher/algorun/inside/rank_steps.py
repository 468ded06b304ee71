"""Runs in a process of a rank that uses torch: counts optimizer steps, and keeps the time of what the program says that it
does.

rank_shim executes it after the import of torch.optim.optimizer. As there, it imports no module that a file of the user
could replace, and no exception may reach the user's program.

Each rank has one record, shared with the supervisor (host/measuring/step_counter.py). The first process of the rank that makes a
step owns it: the rank itself, a child of mp.spawn, or the Python program of a shell script. Only the owner counts, so
the count is the rank's step even if several processes train. A step of another process is a sign of life only; if the
owner has ended, that process becomes the owner and goes on counting. Workers of a DataLoader make no steps. If an
optimizer calls another one (ZeroRedundancyOptimizer), or a script has several, each step counts.

Replaying a CUDA graph runs no hook, so an optimizer step inside a graph is not counted. A replay is a sign of life
instead, not a step: one step may replay many graphs (torch.compile's reduce-overhead, make_graphed_callables), and
evaluation replays graphs as well. A batch from a DataLoader is a sign of life, too.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # typing itself must not be imported here
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, Protocol

    class Stacks(Protocol):
        """Of rank_shim."""

        def offer(self) -> None: ...

    WhenImported = Callable[[str, Callable[[ModuleType], None]], None]  # of rank_shim

# A record has words of 8 bytes, floats and unsigned numbers; host/measuring/step_counter.py says what each is. The rest is spare.
RECORD = 256  # bytes
COUNT, LAST_AT, LONGEST_S, OWNER, TORCH_AT, _, FIRST_STEP_AT = range(7)
FIRST_ACTIVITY, ACTIVITIES = 7, ("data", "forward", "backward", "exchange", "optimizer", "saving", "evaluation")
ACTIVITY, SINCE, GROUP = 14, 15, 16  # what runs now, from 1 (0: none of them), its begin; who does the same work
WORKERS, SAMPLES, TOKENS, FLOPS = 17, 18, 19, 20  # of the loader, plus one (0: not seen); this rank's share of the work
# The end of the last step (LAST_AT is a sign of life); seconds that were no training until the first step, and until then.
STEP_AT, BESIDE_FIRST, BESIDE = 21, 22, 23
ON_GPU = 24  # 1: the seconds of activities are those of the rank's GPU
PROGRESS_AT = 25  # the last report of progress, which progress_report writes
SAVING, EVALUATION = FIRST_ACTIVITY + ACTIVITIES.index("saving"), FIRST_ACTIVITY + ACTIVITIES.index("evaluation")


def _mmap() -> Any:  # the module, loaded by its path: mypy cannot know it
    """The standard library's mmap, loaded from its own folder: the user's folder may hold an mmap.py."""
    if "mmap" in sys.builtin_module_names:
        import mmap

        return mmap
    folder = f"{sys.base_exec_prefix}/{sys.platlibdir}/python{sys.version_info[0]}.{sys.version_info[1]}/lib-dynload"
    spec = sys.modules["_frozen_importlib_external"].PathFinder.find_spec("mmap", [folder])
    module = sys.modules["_frozen_importlib"].module_from_spec(spec)  # not in sys.modules: `import mmap` is the user's
    spec.loader.exec_module(module)
    return module


def alive() -> None:
    """A sign of life between two steps, such as after a batch of an evaluation. _count_steps() replaces it."""


# The methods that replay CUDA graphs; torch.compile calls the first one, as a user's subclass does.
GRAPHS = (("torch.cuda.graphs", "CUDAGraph"), ("torch.accelerator.graphs", "Graph"))


def _watch_graphs() -> None:
    """Makes each replay of a graph a sign of life."""
    for module, name in GRAPHS:
        graph: Any = getattr(sys.modules.get(module), name, None)  # torch has no types for these
        replay = getattr(graph, "replay", None)
        if replay is not None:
            graph.replay = _living(replay)


def _living(replay: Any) -> Any:  # a method of torch, see above
    show_life = alive

    def replayed(self: object, *args: object, **named: object) -> object:
        show_life()  # 0.3 us
        return replay(self, *args, **named)

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(replayed, name, getattr(replay, name, None))
    replayed._torchdynamo_disable = True  # type: ignore[attr-defined]  # as for `stepped` below
    return replayed


def _beside(part: str) -> Any:  # a module: its functions have no types here
    """The module rank_`part`, which lies beside rank_shim."""
    path = __file__.removesuffix("steps.py") + f"{part}.py"
    with open(path, encoding="utf-8") as file:
        code = compile(file.read(), path, "exec")
    module = type(sys)(f"algorun_rank_{part}")
    exec(code, module.__dict__)
    return module


def _offer_calls() -> None:
    """Runs rank_calls: it answers which collectives this process has called."""
    try:
        _beside("calls").offer()
    except Exception:
        pass  # then a hang is judged by stacks alone


def _trace(mmap: Any, index: int, activities: Activities) -> Any:  # a module, and an object of one: see above
    """The trace of a window of steps, None if the job has none."""
    try:
        folder = os.environ["ALGORUN_RUN_DIR"]
        return (
            _beside("trace").begin(mmap, folder, index, activities) if os.environ.get("ALGORUN_TRACE_STEPS") else None
        )
    except Exception:
        return None  # the launcher says that no rank has noted anything


class Activities:
    """Seconds of this process by activity, in its rank's record. An activity within another one interrupts that.

    For the thread that says them; on threads beside it the times are those of all together. Once the process uses a GPU,
    rank_gpu_times corrects them.
    """

    def __init__(self, record: memoryview) -> None:
        self._numbers, self._times = record.cast("Q"), record.cast("d")
        self._indexes = {name: index for index, name in enumerate(ACTIVITIES)}
        self._open: list[int] = []
        self._since = 0.0
        self._pid = os.getpid()  # a process forked from this one says nothing
        self._said = 0  # open activities that the program has said itself
        self.note: Callable[[float, int], None] | None = None  # while steps are traced (rank_trace)
        self._ended, self._spent = -1, 0.0  # what has just ended, and its seconds
        self._gpu: Any = None  # a GpuTimes
        self._may_use_gpu = os.environ.get("ALGORUN_HOOKS") != "off"

    @property
    def open(self) -> list[int]:
        """The indexes of the activities that have begun, the outermost first."""
        return self._open

    def begin(self, name: str) -> None:
        """0.5 us."""
        if os.getpid() != self._pid:
            return
        self._said += 1
        self._open_at(time.monotonic(), name)

    def say_group(self, number: int) -> None:
        """Ranks that say the same number do the same work, such as one stage of a pipeline: they can be compared."""
        if os.getpid() == self._pid:
            self._numbers[GROUP] = number

    def say_workers(self, number: int) -> None:
        """A loader of batches has this many processes of its own. Of several loaders the largest number counts."""
        if os.getpid() == self._pid:
            self._numbers[WORKERS] = max(self._numbers[WORKERS], number + 1)

    def add_work(self, samples: float, tokens: float, flops: float) -> None:
        """This rank's share of what a step of the job has trained on, in samples, tokens and operations on the model's
        numbers. 0.0: not known."""
        if os.getpid() == self._pid:
            self._times[SAMPLES] += samples
            self._times[TOKENS] += tokens
            self._times[FLOPS] += flops

    def enter(self, name: str) -> bool:
        """As `begin`, for rank_activities: only in the record's owner, and only where the program says nothing itself.

        Tells whether it has begun; `leave` then ends it.
        """
        if self._said or self._numbers[OWNER] != os.getpid():
            return False
        self._open_at(time.monotonic(), name)
        return True

    def end(self) -> None:
        """Ends the activity that began last."""
        if os.getpid() != self._pid:
            return
        self._said = max(0, self._said - 1)
        self.leave()

    def leave(self) -> None:
        """Ends what has begun last."""
        if not self._open:
            return
        now = time.monotonic()
        self._fold(now)
        self._open.pop()
        if self.note is not None:
            self.note(now, 0)
        self._run(now)

    def got_batch(self) -> None:
        """A batch is a sign of life: an evaluation makes no steps. The pause before it counts as one between steps does."""
        times = self._times
        if (last := times[LAST_AT]) and self._numbers[OWNER] == os.getpid():
            now = time.monotonic()
            times[LAST_AT], times[LONGEST_S] = now, max(times[LONGEST_S], now - last)

    def _open_at(self, now: float, name: str) -> None:
        self._fold(now)
        index = self._indexes[name]
        self._open.append(index)
        if self.note is not None:
            self.note(now, index + 1)
        self._run(now)

    def _fold(self, now: float) -> None:
        """Keeps the time of what runs. Meanwhile a reader sees that nothing runs: it misses this time, and never has it
        twice."""
        self._ended = -1
        if self._open:
            self._numbers[ACTIVITY] = 0
            self._ended, self._spent = self._open[-1], now - self._since

    def _run(self, now: float) -> None:
        counts = True
        if self._gpu is not None:
            try:
                counts = self._gpu.switch(self._ended, self._spent, self._open[-1] if self._open else -1)
            except Exception:
                self._leave_gpu()
        if counts and self._ended >= 0:
            self._times[FIRST_ACTIVITY + self._ended] += self._spent
        self._since = now
        if self._open:
            self._times[SINCE] = now
            self._numbers[ACTIVITY] = self._open[-1] + 1

    def stepped(self, now: float) -> None:
        """The record's owner has made a step."""
        try:
            if self._gpu is not None:
                self._gpu.stepped(now)
            elif self._may_use_gpu and sys.modules["torch"].cuda.is_initialized():
                self._gpu = self._gpu_times(now)
        except Exception:
            self._leave_gpu()

    def _gpu_times(self, now: float) -> Any:  # as above
        torch: Any = sys.modules["torch"]  # has no types here
        seconds = self._times[FIRST_ACTIVITY : FIRST_ACTIVITY + len(ACTIVITIES)]
        always = SAVING - FIRST_ACTIVITY, EVALUATION - FIRST_ACTIVITY
        has_context, raw_stream = torch._C._cuda_hasPrimaryContext, getattr(torch._C, "_cuda_getCurrentRawStream", None)
        measured = self._numbers[ON_GPU : ON_GPU + 1]
        return _beside("gpu_times").GpuTimes(torch.cuda, has_context, raw_stream, seconds, measured, always, now)

    def _leave_gpu(self) -> None:
        """The times are the CPU's from now on, and nothing is said of the GPU's."""
        self._gpu, self._may_use_gpu = None, False
        self._numbers[ON_GPU] = 0


activities: Activities | None = None  # of the process that torch was imported in
nonfinite: Any = None  # of that process, too: the NonFinite of rank_nonfinite


def _nonfinite(optimizer: ModuleType, count: Callable[[], int], when_imported: WhenImported) -> Any:  # see above
    """Watches for values that are not finite; None where nobody does."""
    try:
        if os.environ.get("ALGORUN_NONFINITE") == "off":
            return None
        return _beside("nonfinite").begin(optimizer, count, when_imported)
    except Exception:
        return None  # then nothing is said of such values


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _claim(index: int, owner: memoryview) -> bool:
    """Makes this process the owner of record `index` if the owner has ended or there is none; tells whether it has.

    Children of mp.spawn make their first steps together: whoever finds the lock taken leaves the record to its holder.
    """
    file = os.open(f"{os.environ['ALGORUN_RUN_DIR']}/steps", os.O_RDWR | os.O_CLOEXEC)
    try:
        os.lseek(file, index * RECORD, os.SEEK_SET)
        os.lockf(file, os.F_TLOCK, RECORD)
        if owner[0] not in (0, os.getpid()) and _alive(owner[0]):
            return False
        owner[0] = os.getpid()
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(file)


def _count_steps(optimizer: ModuleType, stacks: Stacks, when_imported: WhenImported) -> None:
    mmap, index = _mmap(), int(os.environ["ALGORUN_LOCAL_RANK"])
    file = os.open(f"{os.environ['ALGORUN_RUN_DIR']}/steps", os.O_RDWR | os.O_CLOEXEC)
    try:
        whole = memoryview(mmap.mmap(file, 0))
    finally:
        os.close(file)
    record = whole[index * RECORD : (index + 1) * RECORD]
    counts, times = record.cast("Q"), record.cast("d")  # aligned stores of 8 bytes are atomic
    global activities
    said = activities = Activities(record)
    getpid, monotonic = os.getpid, time.monotonic
    if not times[TORCH_AT]:
        times[TORCH_AT] = monotonic()
    pid, owner, watched = 0, False, False
    trace = _trace(mmap, index, activities)

    def stepped(*_: object) -> None:
        nonlocal pid, owner, watched
        try:
            if pid != getpid():  # the first step of this process
                pid = getpid()
                owner = _claim(index, counts[OWNER : OWNER + 1])
                stacks.offer()
                _offer_calls()
                if not watched:  # every version of torch has imported torch.cuda by now
                    watched = True
                    _watch_graphs()
            now, last = monotonic(), times[LAST_AT]
            if owner:
                said.stepped(now)
            if last and now - last > times[LONGEST_S]:
                times[LONGEST_S] = now - last
            beside = times[SAVING] + times[EVALUATION]
            if not last:
                times[FIRST_STEP_AT], times[BESIDE_FIRST] = now, beside
            times[LAST_AT] = times[STEP_AT] = now
            times[BESIDE] = beside
            if owner:
                counts[COUNT] += 1
                if trace is not None:
                    trace.stepped(counts[COUNT], now)
        except Exception:
            pass  # then the launcher sees no steps, and reports no hang

    def show_life() -> None:
        if times[LAST_AT]:  # the launcher watches only ranks that have made a step
            times[LAST_AT] = monotonic()

    global alive
    alive = show_life
    # As torch._dynamo.disable does, without its import: torch.compile then leaves this function uncompiled.
    stepped._torchdynamo_disable = True  # type: ignore[attr-defined]
    optimizer.register_optimizer_step_post_hook(stepped)
    if os.environ.get("ALGORUN_HOOKS") != "off":
        global nonfinite
        nonfinite = _nonfinite(optimizer, lambda: counts[COUNT] if owner or not pid else -1, when_imported)
        note_loss = nonfinite.note_loss if nonfinite is not None else None
        _beside("activities").begin(optimizer, activities, when_imported, note_loss)


def _say_torch() -> None:
    """A file by which the supervisor knows this process among others of the rank, such as a monitor or a resource tracker."""
    path = f"{os.environ['ALGORUN_RUN_DIR']}/torch-{os.getpid()}"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def begin(optimizer: ModuleType, when_imported: WhenImported, stacks: Stacks) -> None:
    """Offers the stacks anew, says that this process uses torch, and counts steps. If one fails, the others still work."""
    for part in (stacks.offer, _say_torch, lambda: _count_steps(optimizer, stacks, when_imported)):
        try:
            part()
        except Exception:
            pass
