"""Runs in every Python process of a rank before the user's first line: reports an uncaught exception at once, offers the
process's stacks, and starts rank_steps when torch is imported.

A .pth file of the interpreter (launcher/algorun-rank.pth) executes it: beside an installed package, or in a folder that
`pip install -e` has named, and only if ALGORUN_SHIM is this file's path without links. So each launcher reaches ranks of
its own installation, and nobody makes a Python run another file by a variable. A worker of Ray's cluster belongs to no rank
(ALGORUN_STACKS without ALGORUN_RANK): it offers its stacks, and nothing else. The user's code folder is on sys.path by then and may hold a
json.py or a socket.py, so only built-in modules are imported (and `_socket`, an extension module that no script
replaces). sys.argv, sys.path and `__main__` are not changed.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # built in, like faulthandler
import faulthandler
import gc
import posix
import sys

TYPE_CHECKING = False  # typing itself must not be imported here
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType, TracebackType
    from typing import Any

_reported: BaseException | None = None  # the last exception that the supervisor has been sent


def report(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Sends an exception to this host's supervisor, once. Never raises, never blocks."""
    global _reported
    if error is _reported or issubclass(kind, (KeyboardInterrupt, SystemExit)):
        return
    _reported = error
    try:
        _execute(_beside("rank_report.py"), "algorun_rank_report").send(kind, error, traceback)
    except Exception:
        pass  # the supervisor still has the exit status and the end of the log


def report_at_exit() -> None:
    """Reports what has ended the program where another hook than ours has told it: typer, rich and others set their own."""
    error = getattr(sys, "last_value", None)
    if isinstance(error, BaseException):
        report(type(error), error, error.__traceback__)


def end_gloo() -> None:
    """Destroys the process group at the interpreter's exit, if it uses no GPU. gloo_threads.py says why."""
    try:
        torch, dist = sys.modules.get("torch"), sys.modules.get("torch.distributed")
        if torch is None or dist is None:
            return
        if dist.is_initialized() and (dist.get_backend() == "gloo" or not torch.cuda.is_initialized()):
            dist.destroy_process_group()
        _execute(_beside("gloo_threads.py"), "algorun_gloo_threads").let_rest()
    except Exception:
        pass  # the script has already ended; its result must not change


class Stacks:
    """A file of this process, into which its stacks go when the supervisor asks; it asks only where the file exists.

    On SIGUSR2 those of all threads, which ends what hangs. On LOOK the main thread's alone: that is asked of processes that may
    work, and nobody handles this signal. A dump of all threads can make CPython crash while another thread runs.
    """

    LOOK = 61  # a real-time signal

    def __init__(self) -> None:
        self._pid, self._path = 0, ""

    def offer(self) -> None:
        """Registers the file, or deletes it if the user has a handler for SIGUSR2. Called when the process starts, when torch is
        imported, and at its first step: it may have been forked since, and the user may have set a handler."""
        if _signal.getsignal(_signal.SIGUSR2) != _signal.SIG_DFL:  # faulthandler's own does not show here
            if self._pid == posix.getpid():
                self.withdraw()
        elif self._pid != posix.getpid():
            folder = posix.environ.get(b"ALGORUN_RUN_DIR") or posix.environ[b"ALGORUN_STACKS"]
            self._path = f"{folder.decode()}/stack-{posix.getpid()}"
            file = posix.open(self._path, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND | posix.O_CLOEXEC, 0o600)
            faulthandler.register(_signal.SIGUSR2, file=file, all_threads=True, chain=False)
            faulthandler.register(self.LOOK, file=file, all_threads=False, chain=False)
            self._pid = posix.getpid()

    def end(self) -> None:
        """The program ends. One that uses MPI leaves its file: MPI waits for all ranks there."""
        if "mpi4py" not in sys.modules:
            self.withdraw()

    def withdraw(self) -> None:
        """Deletes the file of this process."""
        if self._pid == posix.getpid():
            self._pid = 0
            try:
                posix.unlink(self._path)
            except OSError:
                pass  # the attempt is over, and its folder has gone


STACKS = Stacks()


def _beside(file: str) -> str:
    """The path of a file beside this one."""
    return __file__.removesuffix("rank_shim.py") + file


def _execute(path: str, name: str, listed: bool = False) -> Any:  # a module: its functions have no types here
    """The module in the file `path`, which need not be in any folder of sys.path. `listed`: also in sys.modules."""
    with open(path, encoding="utf-8") as file:
        code = compile(file.read(), path, "exec")
    module = type(sys)(name)
    module.__file__ = path
    if listed:
        sys.modules[name] = module
    exec(code, module.__dict__)
    return module


def _install() -> None:
    import atexit

    atexit.register(STACKS.end)
    atexit.register(end_gloo)
    atexit.register(report_at_exit)
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        report(kind, error, traceback)
        before(kind, error, traceback)

    sys.excepthook = hook


class Finder:
    """Stands in sys.meta_path until the modules that it waits for have been imported; it imports none of them itself."""

    def __init__(self) -> None:
        self._waiting: dict[str, Callable[[ModuleType], None]] = {}

    def when_imported(self, name: str, then: Callable[[ModuleType], None]) -> None:
        """Calls `then` with the module once the script has imported it: at once if it has."""
        if name in sys.modules:
            then(sys.modules[name])
            return
        self._waiting[name] = then
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module's own spec, whose loader calls `then` when it has executed the module."""
        then = self._waiting.pop(name, None)
        if then is None:
            return None
        if not self._waiting:
            sys.meta_path.remove(self)
        for finder in list(sys.meta_path):
            spec = finder.find_spec(name, path, target) if finder is not self else None
            if spec is not None:
                self._follow(spec.loader, then)
                return spec
        return None

    # Any: its attribute is replaced, which no type of typing allows.
    def _follow(self, loader: Any, then: Callable[[ModuleType], None]) -> None:
        """For any loader. The module keeps its own. Garbage is not collected while the module executes: what an import makes stays,
        and looking through it again and again is a fifth of the time that torch takes."""
        try:
            execute = loader.exec_module

            def execute_and_then(module: ModuleType) -> None:
                loader.__dict__.pop("exec_module", None)
                collects = gc.isenabled()
                gc.disable()
                try:
                    execute(module)
                finally:
                    if collects:
                        gc.enable()
                try:
                    then(module)
                except Exception:
                    pass  # then nothing is known of this module

            loader.exec_module = execute_and_then
        except Exception:
            pass


FINDER = Finder()


def _strict_device() -> None:
    """ALGORUN_CUDA_ON_CPU=strict: the script's import of torch finds a device named cuda. The package algorun_train, which
    the launcher does not import, makes it."""
    try:
        __import__("algorun_train.ranks.strict_cuda.import_hook", fromlist=["install"]).install()
    except ImportError as error:
        sys.stderr.write(
            f"ALGORUN_CUDA_ON_CPU=strict: {error}; fix: pip install ./train in the clone of algorun, or unset it\n"
        )
        raise SystemExit(64) from None


def _begin_steps(optimizer: ModuleType) -> None:
    # algorun.should_stop() finds it by this name.
    steps = _execute(_beside("rank_steps.py"), "algorun_rank_steps", listed=True)
    steps.begin(optimizer, FINDER.when_imported, STACKS)


def _offer_stacks() -> None:
    try:
        STACKS.offer()
    except Exception:
        pass  # then a hang is judged by what the kernel counts


if b"ALGORUN_RANK" not in posix.environ:
    _offer_stacks()
elif getattr(sys.excepthook, "__module__", "") != __name__:  # a virtual environment's .pth files run twice
    _install()
    _offer_stacks()
    FINDER.when_imported("torch.optim.optimizer", _begin_steps)
    for heavy in ("torch", "torch._dynamo"):  # the second comes with the first optimizer
        FINDER.when_imported(heavy, lambda module: None)
    if posix.environ.get(b"ALGORUN_CUDA_ON_CPU") == b"strict":
        _strict_device()
