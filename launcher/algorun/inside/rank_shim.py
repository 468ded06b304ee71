"""Runs inside every Python process of a rank, before its first line: reports an exception at the moment it is raised,
and lets rank_steps know when torch is there.

Executed by a .pth file of the interpreter, by its path: a launcher.py of the user's must not stand in for it. The
user's code folder is on the module path here, and it may hold a json.py or a socket.py, so nothing is imported that
is not built in (`_socket` is an extension module of the standard library, which no script shadows). sys.argv, sys.path
and `__main__` stay as they are.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # typing itself must not be imported here
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType, TracebackType
    from typing import Any

LONGEST_REPORT = 32 * 1024  # bytes; a datagram on a Unix socket carries more than this
FRAMES = 60


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
        out.append(f'  File "{code.co_filename}", line {traceback.tb_lineno}, in {code.co_name}')
        source = _line(code.co_filename, traceback.tb_lineno)
        if source:
            out.append(f"    {source}")
        traceback = traceback.tb_next
    return out[-2 * FRAMES :]


def _name(kind: type[BaseException]) -> str:
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


def describe(error: BaseException, traceback: TracebackType | None) -> str:
    """The traceback as text, oldest cause first, without the modules that usually make it."""
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
    """Sends one exception to the supervisor of this host; never raises, never waits."""
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
        pass  # the exit status and the log tail still tell


def end_gloo() -> None:
    """Ends torch.distributed before the interpreter ends, where no GPU has a part in it.

    Gloo's thread (torch 2.10 to 2.13) may want the GIL while the interpreter ends, and then aborts the process (SIGABRT,
    "terminate called without an active exception"): a rank that had done its work would fail the job.
    """
    try:
        torch, dist = sys.modules.get("torch"), sys.modules.get("torch.distributed")
        if torch is None or dist is None:
            return
        if dist.is_initialized() and (dist.get_backend() == "gloo" or not torch.cuda.is_initialized()):
            dist.destroy_process_group()
        _let_gloo_rest()
    except Exception:
        pass  # the script has ended by then, well or not


def _let_gloo_rest(looks: int = 3, longest: int = 500) -> None:
    """Waits, without the GIL, until Gloo's threads have slept for some milliseconds.

    They end with their process group, but that outlasts destroy_process_group() where a DistributedDataParallel or a
    variable of the script holds it; what the last collective has left them to do comes within microseconds.
    """
    asleep = 0
    while asleep < looks and longest and (states := _gloo_threads()):
        asleep = asleep + 1 if set(states) == {"S"} else 0
        longest -= 1
        time.sleep(0.001)


def _gloo_threads() -> list[str]:
    """The state of each of them, as in /proc/[pid]/stat."""
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/stat", encoding="utf-8", errors="replace") as file:
                name, _, rest = file.read().partition("(")[2].rpartition(") ")
        except OSError:  # it has just ended
            continue
        if name == "pt_gloo_runloop":
            found.append(rest[0])
    return found


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
    """Waits on sys.meta_path for one import, that of torch's optimizers, and is gone: torch is never imported for us."""

    MODULE = "torch.optim.optimizer"

    def __init__(self, steps: str) -> None:
        self._steps = steps

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name != self.MODULE:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Any) -> None:
        """Has the loader's next execution of a module followed by ours; the module keeps its own loader."""
        try:
            execute = loader.exec_module

            def execute_and_begin(module: ModuleType) -> None:
                loader.__dict__.pop("exec_module", None)
                execute(module)
                try:
                    with open(self._steps, encoding="utf-8") as file:
                        code = compile(file.read(), self._steps, "exec")
                    steps: Any = type(sys)("algorun_rank_steps")
                    sys.modules[steps.__name__] = steps  # where algorun.should_stop() looks for it
                    exec(code, steps.__dict__)
                    steps.begin(module)
                except Exception:
                    pass  # no steps are counted then

            loader.exec_module = execute_and_begin
        except Exception:
            pass


if getattr(sys.excepthook, "__module__", "") != __name__:  # a virtual environment's .pth files run twice
    _install()
    _steps = os.environ.get("ALGORUN_SHIM", "").removesuffix("shim.py") + "steps.py"  # beside this file
    sys.meta_path.insert(0, Finder(_steps))
