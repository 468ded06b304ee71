"""Processes and their owner: every process that a supervisor starts, and whatever those leave behind, ends with it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from errno import EACCES, ENOENT, ENOEXEC

from algorun.errors import UserError

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
PR_SET_PDEATHSIG = 1  # prctl(2)
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Stat:
    """The few fields of /proc/PID/stat that ownership needs."""

    pid: int
    name: str
    state: str
    parent: int
    session: int
    threads: int

    @property
    def ended(self) -> bool:
        """True once nothing of it runs or holds memory. The kernel calls a process a zombie as soon as its first thread
        has ended; others may still run, or give back the memory of a GPU, which takes seconds."""
        return self.state in "ZX" and self.threads < 2


def processes() -> list[Stat]:
    """All processes of this machine (of this container, inside one)."""
    found = []
    for item in os.listdir("/proc"):
        if not item.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{item}/stat", encoding="utf-8", errors="replace") as file:
                text = file.read()
            name = text[text.index("(") + 1 : text.rindex(")")]  # a name may hold spaces and brackets
            fields = text[text.rindex(")") + 2 :].split()
            found.append(Stat(int(item), name, fields[0], int(fields[1]), int(fields[3]), int(fields[17])))
    return found


def alive_in(sessions: Iterable[int]) -> list[Stat]:
    """Processes of these sessions that have not ended."""
    wanted = set(sessions)
    return [stat for stat in processes() if stat.session in wanted and not stat.ended]


def send(pid: int, number: int) -> None:
    """One signal to one process, which may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_sessions(sessions: Iterable[int], number: int = signal.SIGKILL) -> None:
    """A signal to every process of these sessions."""
    for stat in alive_in(sessions):
        send(stat.pid, number)


def ask_to_stop(pid: int, number: int = signal.SIGTERM) -> None:
    """Tells one rank to stop: its process, and below a shell the shell's children too.

    A shell does not pass signals on. A Python process alone is told: its data loaders must live until it has saved.
    """
    table = {stat.pid: stat for stat in processes()}
    todo = [pid]
    while todo:
        current = todo.pop()
        stat = table.get(current)
        if stat is not None and stat.name in SHELLS:
            todo += [child.pid for child in table.values() if child.parent == current]
        send(current, number)


def end_with_parent(number: int) -> Callable[[], None]:
    """A `preexec_fn` for a child that is to get this signal should its parent be killed and tell it nothing."""
    import ctypes

    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl  # nothing is imported between fork and exec

    def tie() -> None:
        prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:  # it has gone in between
            os._exit(128 + number)

    return tie


class Owner:
    """Starts processes, each in a session of its own, and reaps them; kills what is left at the end.

    `on_exit(pid, returncode)` gets -n for signal n, as Popen does.
    """

    def __init__(self, on_exit: Callable[[int, int], None]) -> None:
        self._on_exit = on_exit
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._sessions: set[int] = set()
        self._guard: int | None = None
        self._guard_pid = 0

    def guard(self) -> None:
        """Forks a watcher that kills all sessions should this process be killed itself. Call before any thread runs.

        It holds one end of a pipe and learns each session from it; the pipe's end is this process's end.
        """
        reader, self._guard = os.pipe()
        self._guard_pid = os.fork()
        if self._guard_pid == 0:
            os.close(self._guard)
            _watch_over(reader)
        os.close(reader)

    def adopt(self) -> None:
        """Orphans of the ranks become children of this process, so that none can slip away."""
        import ctypes  # 10 ms of a start; this runs beside the ranks

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def start(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        cwd: str,
        stdout: int,
        stderr: int,
        *,
        what: str,
        stdin: int = subprocess.DEVNULL,
    ) -> int:
        """Starts a process in a new session and returns its pid. Raises UserError where the program cannot start."""
        try:
            child = subprocess.Popen(
                list(argv),
                env=dict(environ),
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            missing = getattr(error, "filename", None) or argv[0]
            number = getattr(error, "errno", None)
            fix = "check that it exists and is executable" if number in (ENOENT, EACCES, ENOEXEC) else ""
            raise UserError(what, f"{missing}: {reason}", fix=fix) from None
        self._children[child.pid] = child
        self.own(child.pid)
        return child.pid

    def clean_up(self, folder: str) -> None:
        """The watcher removes this folder should this process be killed."""
        self._tell_guard(f"-{folder}\n")

    def own(self, session: int) -> None:
        """Also ends this session at the end (a rank that an engine started)."""
        self._sessions.add(session)
        self._tell_guard(f"+{session}\n")

    def reap(self) -> None:
        """Collects every ended child; adopted orphans are collected too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self._children.pop(pid, None)
            if child is not None:
                child.returncode = os.waitstatus_to_exitcode(status)
                self._on_exit(pid, child.returncode)

    def left(self) -> list[Stat]:
        """What is left of all that was started: sessions, and adopted orphans that left their session. A child is left
        until it has been reaped."""
        me = os.getpid()
        found = []
        for stat in processes():
            child = stat.parent == me and stat.pid != self._guard_pid
            if child or (stat.session in self._sessions and not stat.ended):
                found.append(stat)
        return found

    def kill_left(self) -> bool:
        """Kills whatever is left; False once nothing is, and everything started so far is forgotten."""
        left = self.left()
        for stat in left:
            send(stat.pid, signal.SIGKILL)
        if not left:
            self._sessions.clear()
            self._tell_guard("=\n")
        return bool(left)

    def close(self) -> None:
        """Kills and collects whatever is left."""
        for _ in range(50):
            self.reap()
            if not self.kill_left():
                break
            select.select([], [], [], 0.02)
        if self._guard is not None:
            self._tell_guard("q\n")
            os.close(self._guard)
            self._guard = None
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._guard_pid, 0)

    def _tell_guard(self, line: str) -> None:
        if self._guard is not None:
            with contextlib.suppress(OSError):
                os.write(self._guard, line.encode())


def _watch_over(reader: int) -> None:
    """The watcher's whole life: reads sessions, and kills them when the supervisor vanishes without a word."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for fd in (0, 1, 2):  # a reader of our output must not wait for this process
        with contextlib.suppress(OSError):
            os.close(fd)
    sessions: set[int] = set()
    folders: set[str] = set()
    text = b""
    while chunk := os.read(reader, 65536):
        text += chunk
        *lines, text = text.split(b"\n")
        for line in lines:
            if line == b"q":
                os._exit(0)
            elif line == b"=":
                sessions.clear()
            elif line.startswith(b"-"):
                folders.add(os.fsdecode(line[1:]))
            else:
                sessions.add(int(line[1:]))
    for _ in range(50):
        kill_sessions(sessions)
        if not alive_in(sessions):
            break
        select.select([], [], [], 0.02)
    import shutil  # not needed for a start

    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)
