"""Runs inside a process of a rank once torch is there: counts optimizer steps, and shows stacks on SIGUSR2.

rank_shim executes it when torch.optim.optimizer has been imported. The same care: nothing is imported that a file of
the user's could shadow, and nothing here may ever raise into the user's program.

The record of a rank (steps.py has the other side) belongs to the first process that steps: the rank itself, one child
of mp.spawn, the Python program of a shell script. Only its owner counts, so that the number is the step that this rank
has reached however many processes it consists of. Any other process that steps is a sign of life all the same, and
takes the record over once its owner has ended (a shell script's second program goes on counting). A DataLoader's worker
does not step, so it never appears. A step inside a step (ZeroRedundancyOptimizer) and each optimizer of several count.

A captured optimizer step runs no hook when its graph is replayed. A replay is a sign of life but no step: one step may
replay many graphs (torch.compile's reduce-overhead, make_graphed_callables), and evaluation replays them too.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # built in, as faulthandler is
import faulthandler
import os
import sys
import time

TYPE_CHECKING = False  # typing itself must not be imported here
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

RECORD = 64  # bytes: unsigned count, float last_at, float longest_s, unsigned pid; the rest is spare
COUNT, LAST_AT, LONGEST_S, OWNER = range(4)


def _mmap() -> Any:
    """The standard library's mmap, from where it lies: the user's folder may hold an mmap.py."""
    if "mmap" in sys.builtin_module_names:
        import mmap

        return mmap
    folder = f"{sys.base_exec_prefix}/{sys.platlibdir}/python{sys.version_info[0]}.{sys.version_info[1]}/lib-dynload"
    spec = sys.modules["_frozen_importlib_external"].PathFinder.find_spec("mmap", [folder])
    module = sys.modules["_frozen_importlib"].module_from_spec(spec)  # not in sys.modules: `import mmap` is the user's
    spec.loader.exec_module(module)
    return module


class Stacks:
    """All threads into a file of this process; that the file is there says that SIGUSR2 may be sent."""

    def __init__(self) -> None:
        self._pid, self._path = 0, ""

    def offer(self) -> None:
        """At torch's import and at a process's first step: one forked meanwhile has its parent's file, and the user may
        have set a handler, which stays and is never called by us."""
        if _signal.getsignal(_signal.SIGUSR2) != _signal.SIG_DFL:  # faulthandler's own does not show here
            if self._pid == os.getpid():
                os.unlink(self._path)
                self._pid = 0
        elif self._pid != os.getpid():
            self._pid = os.getpid()
            self._path = f"{os.environ['ALGORUN_RUN_DIR']}/stack-{self._pid}"
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            faulthandler.register(_signal.SIGUSR2, file=file, all_threads=True, chain=False)


def alive() -> None:
    """A sign of life between two steps, such as a batch of an evaluation. Replaced once steps are counted."""


# Where torch replays graphs: its own compiler does so by the first one, and classes of the user's call it.
GRAPHS = (("torch.cuda.graphs", "CUDAGraph"), ("torch.accelerator.graphs", "Graph"))


def _watch_graphs() -> None:
    """From now on each replay of a graph shows life."""
    for module, name in GRAPHS:
        graph: Any = getattr(sys.modules.get(module), name, None)
        replay = getattr(graph, "replay", None)
        if replay is not None:
            graph.replay = _living(replay)


def _living(replay: Any) -> Any:
    show_life = alive

    def replayed(self: object, *args: object, **named: object) -> object:
        show_life()  # 0.3 us
        return replay(self, *args, **named)

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(replayed, name, getattr(replay, name, None))
    replayed._torchdynamo_disable = True  # type: ignore[attr-defined]  # as with steps
    return replayed


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _count_steps(optimizer: ModuleType, stacks: Stacks) -> None:
    mmap, index = _mmap(), int(os.environ["ALGORUN_LOCAL_RANK"])
    file = os.open(f"{os.environ['ALGORUN_RUN_DIR']}/steps", os.O_RDWR | os.O_CLOEXEC)
    try:
        whole = memoryview(mmap.mmap(file, 0))
    finally:
        os.close(file)
    record = whole[index * RECORD : (index + 1) * RECORD]
    counts, times = record.cast("Q"), record.cast("d")  # stores of 8 aligned bytes: a reader sees no half of one
    getpid, monotonic = os.getpid, time.monotonic
    pid, owner, watched = 0, False, False

    def stepped(*_: object) -> None:
        nonlocal pid, owner, watched
        try:
            if pid != getpid():  # the first step of this process
                pid = getpid()
                owner = counts[OWNER] in (0, pid) or not _alive(counts[OWNER])
                if owner:
                    counts[OWNER] = pid
                stacks.offer()
                if not watched:  # torch.cuda has been imported by now, in whatever order this torch does it
                    watched = True
                    _watch_graphs()
            now, last = monotonic(), times[LAST_AT]
            if last and now - last > times[LONGEST_S]:
                times[LONGEST_S] = now - last
            times[LAST_AT] = now
            if owner:
                counts[COUNT] += 1
        except Exception:
            pass  # the launcher then sees no steps and keeps still

    def show_life() -> None:
        if times[LAST_AT]:  # before the first step nobody asks
            times[LAST_AT] = monotonic()

    global alive
    alive = show_life
    # What torch._dynamo.disable would set, without its import: a compiled optimizer step leaves this function alone.
    stepped._torchdynamo_disable = True  # type: ignore[attr-defined]
    optimizer.register_optimizer_step_post_hook(stepped)


def begin(optimizer: ModuleType) -> None:
    """Both, each on its own: what fails is not there."""
    stacks = Stacks()
    for part in (stacks.offer, lambda: _count_steps(optimizer, stacks)):
        try:
            part()
        except Exception:
            pass
