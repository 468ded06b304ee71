"""The stacks of the processes of this host's ranks. With rank_shim in it, a process writes them on a signal."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Sequence

from algorun.control.hang.hang import StackFrame

PROC = "/proc"
ALL_THREADS = signal.SIGUSR2
MAIN_THREAD = 61  # as rank_shim has it
EXITING = 0x4  # among a process's flags there (PF_EXITING)
LONGEST = 64 * 1024  # characters of one dump
BEGINNING = 16 * 1024  # kept of a longer one, with its end: there is the main thread
LONGEST_LINE = 200  # characters of a line of source
OWN = "/algorun/inside/rank_activities.py"  # it stands around torch's functions, and is no line of the user's

OF_PROCESS = re.compile("stack-([0-9]{1,9})")  # a rank can write into the folder, too
# The second form is that of a dump of the main thread alone.
THREAD = re.compile(r"^(?:(?:Current thread|Thread) 0x[0-9a-f]+.*|Stack \(most recent call first\)):$", re.MULTILINE)
NO_FRAME = "  <no Python frame>\n"  # of the main thread, which comes last
END = (StackFrame("<end>", 0, "end of the program"),)  # MPI waits for all ranks there
FRAME = re.compile(r'^  File "(.*)", line ([0-9]{1,9}) in (.*)$', re.MULTILINE)


def _path(pid: int, folder: str) -> str:
    return os.path.join(folder, f"stack-{pid}")


def _status(pid: int, field: str) -> str:
    """A line of /proc/PID/status, empty where there is none."""
    with contextlib.suppress(OSError), open(f"{PROC}/{pid}/status", encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name == field:
                return value.strip()
    return ""


def askable(folder: str) -> list[int]:
    """The processes that have offered to answer. Some of them may have ended."""
    return sorted(int(found[1]) for name in os.listdir(folder) if (found := OF_PROCESS.fullmatch(name)))


def by_session(folder: str) -> dict[int, list[int]]:
    """The processes that can be asked, by session: each rank has a session of its own."""
    found: dict[int, list[int]] = {}
    for pid in askable(folder):
        with contextlib.suppress(OSError):
            found.setdefault(os.getsid(pid), []).append(pid)
    return found


def speaking(pids: Sequence[int], folder: str) -> list[int]:
    """Those of a rank's processes that use torch; all of them where none does."""
    return [pid for pid in pids if os.path.exists(os.path.join(folder, f"torch-{pid}"))] or list(pids)


def forget(folder: str) -> None:
    """Removes the files of all processes, once none of them lives any more."""
    for pid in askable(folder):
        with contextlib.suppress(OSError):
            os.unlink(_path(pid, folder))
    for name in os.listdir(folder):
        if name.startswith(("calls-", "torch-")):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))


def ask(pid: int, folder: str, number: int = ALL_THREADS) -> bool:
    """Asks a process to write its stacks; `read` returns them moments later. False where the process cannot.

    The signal kills a process that does not handle it, so the file alone is no proof: the process may have called exec
    since. Where the user's program has set its own handler since, that handler runs, and no stack appears.
    """
    path = _path(pid, folder)
    caught = int(_status(pid, "SigCgt") or "0", 16)
    if not os.path.exists(path) or not caught >> (number - 1) & 1:
        return False
    try:
        os.truncate(path, 0)  # what an earlier question left; the process appends
        os.kill(pid, number)
    except OSError:
        return False
    return True


def ends_python(pid: int, folder: str) -> bool:
    """True for a Python program that has ended but for what C does in its end: the handler of signals has gone. Only those that use
    MPI leave their file, as MPI waits for all ranks there."""
    if not os.path.exists(_path(pid, folder)) or int(_status(pid, "SigCgt") or "0", 16) >> (MAIN_THREAD - 1) & 1:
        return False
    with contextlib.suppress(OSError):
        return os.path.basename(os.readlink(f"{PROC}/{pid}/exe")).startswith("python")
    return False


def read_stacks(pid: int, folder: str) -> str:
    """What the process has written so far, all threads; the middle of a very long text is left out."""
    try:
        with open(_path(pid, folder), encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return ""
    if len(text) <= LONGEST:
        return text
    return f"{text[:BEGINNING]}\n  ... {len(text) - LONGEST} characters left out ...\n{text[BEGINNING - LONGEST :]}"


def frozen(pid: int) -> bool:
    """True for a process that cannot answer: it is stopped (SIGSTOP, a debugger), or a device holds it in the kernel.

    The kernel holds a healthy process for milliseconds, so look at a process that was asked a while ago. A process that
    is ending does not count, though writing a core file or freeing a GPU's memory can take as long.
    """
    return _status(pid, "State")[:1] in ("T", "t", "D") and not _ends(pid)


def _ends(pid: int) -> bool:
    """True while the kernel writes a process's core file or frees what the process held."""
    if _status(pid, "CoreDumping") == "1":
        return True
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"{PROC}/{pid}/stat", "rb") as file:
        return bool(int(file.read().rpartition(b") ")[2].split()[6]) & EXITING)
    return False


def frames(text: str) -> tuple[StackFrame, ...]:
    """The main thread's frames, innermost first, without those of algorun itself.

    faulthandler lists the newest thread first, so the main thread comes last. With more than 100 threads it stops before
    the main thread; then the thread that took the signal has to do.
    """
    if text.endswith(NO_FRAME):
        return END
    blocks = list(THREAD.finditer(text))
    if not blocks:
        return ()
    chosen = blocks[-1]
    if text[chosen.end() :].rstrip().endswith("\n..."):
        chosen = next((block for block in blocks if block.group().startswith("Current")), chosen)
    end = next((block.start() for block in blocks if block.start() > chosen.start()), len(text))
    found = FRAME.findall(text, chosen.end(), end)
    return tuple(StackFrame(file, int(line), function) for file, line, function in found if not file.endswith(OWN))


def source(frame: StackFrame) -> str:
    """The line of source that a frame is at, empty where it cannot be read."""
    with contextlib.suppress(OSError), open(frame.file, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if number == frame.line:
                return line.strip()[:LONGEST_LINE]
    return ""
