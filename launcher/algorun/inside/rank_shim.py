"""Runs in every Python process of a rank before the user's first line: reports an uncaught exception at once, and starts
rank_steps when torch is imported.

A .pth file of the interpreter executes it by its path. The user's code folder is on sys.path by then and may hold a
json.py or a socket.py, so only built-in modules are imported (and `_socket`, an extension module that no script
replaces). sys.argv, sys.path and `__main__` are not changed.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # typing itself must not be imported here
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType, TracebackType
    from typing import Any

LONGEST_REPORT = 32 * 1024  # characters; a datagram on a Unix socket may be larger
FRAMES = 60
OWN = "/algorun/inside/rank_activities.py"  # as in host/stacks.py, which cannot be imported here


def _line(path: str, number: int) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for count, text in enumerate(file, 1):
                if count == number:
                    return text.strip()
    except OSError:
        pass
    return ""


def _frames(traceback: TracebackType | None) -> list[str]:
    out: list[str] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        source = _line(code.co_filename, traceback.tb_lineno)
        if not code.co_filename.endswith(OWN):
            out.append(f'  File "{code.co_filename}", line {traceback.tb_lineno}, in {code.co_name}')
            out += [f"    {source}"] if source else []
        traceback = traceback.tb_next
    return out[-2 * FRAMES :]


def _name(kind: type[BaseException]) -> str:
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


def describe(error: BaseException, traceback: TracebackType | None) -> str:
    """The traceback and its causes as text, the oldest first. The module traceback is not used: see above."""
    parts: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        trace = traceback if current is error else current.__traceback__
        lines = ["Traceback (most recent call last):", *_frames(trace), f"{_name(type(current))}: {_text(current)}"]
        parts.insert(0, "\n".join(lines))
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return "\n\n".join(parts)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a broken __str__ must not hide the failure
        return "(its message cannot be shown)"


def report(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Sends an exception to this host's supervisor. Never raises, never blocks."""
    try:
        import _socket

        fields = (
            os.environ.get("ALGORUN_RANK", ""),
            str(os.getpid()),
            repr(time.monotonic()),
            _name(kind),
            _text(error)[:4096],
            describe(error, traceback)[-LONGEST_REPORT:],
        )
        body = b"\0".join(field.replace("\0", "").encode("utf-8", "replace") for field in fields)
        channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK)
        try:
            channel.sendto(body, os.environ["ALGORUN_RUN_DIR"] + "/raised")
        finally:
            channel.close()
    except Exception:
        pass  # the supervisor still has the exit status and the end of the log


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


def _beside(file: str) -> str:
    """The path of a file beside this one."""
    return os.environ.get("ALGORUN_SHIM", "").removesuffix("rank_shim.py") + file


def _execute(path: str, name: str, listed: bool = False) -> Any:  # a module: its functions have no types here
    """The module in the file `path`, which need not be in any folder of sys.path. `listed`: also in sys.modules."""
    with open(path, encoding="utf-8") as file:
        code = compile(file.read(), path, "exec")
    module = type(sys)(name)
    if listed:
        sys.modules[name] = module
    exec(code, module.__dict__)
    return module


def _install() -> None:
    import atexit

    atexit.register(end_gloo)
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
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
        """For any loader. The module keeps its own."""
        try:
            execute = loader.exec_module

            def execute_and_then(module: ModuleType) -> None:
                loader.__dict__.pop("exec_module", None)
                execute(module)
                try:
                    then(module)
                except Exception:
                    pass  # then nothing is known of this module

            loader.exec_module = execute_and_then
        except Exception:
            pass


FINDER = Finder()


def _begin_steps(optimizer: ModuleType) -> None:
    # algorun.should_stop() finds it by this name.
    steps = _execute(_beside("rank_steps.py"), "algorun_rank_steps", listed=True)
    steps.begin(optimizer, FINDER.when_imported)


if getattr(sys.excepthook, "__module__", "") != __name__:  # a virtual environment's .pth files run twice
    _install()
    FINDER.when_imported("torch.optim.optimizer", _begin_steps)
