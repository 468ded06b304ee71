"""Processes and their owner: all that a supervisor starts ends with it, and all that these processes leave behind.

The number of a process, and so of its session, may be a stranger's once it has ended. So only what is below this process
counts as its own, and a signal goes to the process that was seen, by its start time and a pidfd.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass
from algorun.common.folders import remove_folder
from algorun.common.process_limit import cannot_start

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
PR_SET_PDEATHSIG = 1  # prctl(2)
PR_SET_CHILD_SUBREAPER = 36
ASIDE_ROUNDS, ASIDE_POLL_S = 40, 0.005  # 0.2 s in all


@dataclass(frozen=True, slots=True)
class Stat:
    """The few fields of /proc/PID/stat that ownership needs."""

    pid: int
    name: str
    state: str
    parent: int
    session: int
    threads: int
    born: int = 0  # clock ticks since the machine's start

    @property
    def ended(self) -> bool:
        """True once nothing of it runs or holds memory. The kernel calls a process a zombie as soon as its first thread
        has ended; others may still run, or give back the memory of a GPU, which takes seconds."""
        return self.state in "ZX" and self.threads < 2


def processes() -> list[Stat]:
    """All processes of this machine (of this container, inside one)."""
    found = (stat_of(int(item)) for item in os.listdir("/proc") if item.isdigit())
    return [stat for stat in found if stat is not None]


def stat_of(pid: int) -> Stat | None:
    """A process as it is now, None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
        name = text[text.index("(") + 1 : text.rindex(")")]  # a name may hold spaces and brackets
        fields = text[text.rindex(")") + 2 :].split()
        parent, session, threads, born = (int(fields[at]) for at in (1, 3, 17, 19))
    except (OSError, ValueError, IndexError):
        return None
    return Stat(pid, name, fields[0], parent, session, threads, born)


def below(found: Sequence[Stat]) -> list[Stat]:
    """Those of all processes that this one has started, directly or not."""
    children: dict[int, list[Stat]] = {}
    for stat in found:
        children.setdefault(stat.parent, []).append(stat)
    own: list[Stat] = []
    todo = children.pop(os.getpid(), [])
    while todo:
        stat = todo.pop()
        own.append(stat)
        todo += children.pop(stat.pid, [])
    return own


def alive_in(sessions: Iterable[int]) -> list[Stat]:
    """Processes of these sessions, below this process, that have not ended."""
    wanted = set(sessions)
    return [stat for stat in below(processes()) if stat.session in wanted and not stat.ended]


def strays(found: Sequence[Stat], folders: Iterable[str]) -> list[Stat]:
    """Processes of this user that carry one of these run folders in their environment, wherever they have gone: a program may
    detach one before this process adopts orphans."""
    marks = [b"\0ALGORUN_RUN_DIR=" + os.fsencode(folder) + b"\0" for folder in folders]
    me = os.getpid()
    own = next((stat.born for stat in found if stat.pid == me), 0)
    return [
        stat
        for stat in found
        if stat.born >= own and stat.pid != me and not stat.ended and marks and _has(stat.pid, marks)
    ]


def _has(pid: int, marks: Sequence[bytes]) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environ = b"\0" + file.read()
    except OSError:  # it has ended, or it is another user's
        return False
    return any(mark in environ for mark in marks)


def send(pid: int, born: int, number: int) -> None:
    """One signal to the process that was born then. If it has ended, a later one with its number gets none."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:  # a kernel or a sandbox without it
        descriptor = -1
    try:
        now = stat_of(pid)
        if now is not None and now.born == born:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if descriptor < 0:
                    os.kill(pid, number)
                else:
                    signal.pidfd_send_signal(descriptor, number)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def send_below(pid: int, number: int) -> None:
    """One signal to a process below this one, by its number; nothing if the number is another's by now."""
    stat = next((stat for stat in below(processes()) if stat.pid == pid), None)
    if stat is not None:
        send(pid, stat.born, number)


def kill_sessions(sessions: Iterable[int], number: int = signal.SIGKILL) -> None:
    """A signal to every process of these sessions, below this process."""
    for stat in alive_in(sessions):
        send(stat.pid, stat.born, number)


def is_shell(stat: Stat) -> bool:
    """True for a shell. A script with `#!/bin/bash` that the kernel has started has the script's name."""
    if stat.name in SHELLS:
        return True
    try:
        return os.path.basename(os.readlink(f"/proc/{stat.pid}/exe")) in SHELLS
    except OSError:  # it has ended
        return False


def end_with_parent(number: int) -> Callable[[], None]:
    """A `preexec_fn`: the child gets this signal when its parent ends, even if the parent is killed."""
    import ctypes

    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl  # nothing is imported between fork and exec

    def tie() -> None:
        prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:  # the parent has ended already
            os._exit(128 + number)

    return tie


class Owner:
    """Starts processes, each in a session of its own, and reaps them; kills what is left at the end.

    `on_exit(pid, returncode)` gets -n for signal n, as Popen does.
    """

    def __init__(self, on_exit: Callable[[int, int], None]) -> None:
        self._on_exit = on_exit
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._sessions: dict[int, int] = {}  # when the leader of each was born
        self._aside: set[int] = set()  # children that outlive an attempt
        self._released: set[int] = set()  # children that outlive this owner
        self._folders: list[str] = []  # run folders, which mark all that ranks start
        self._guard: int | None = None
        self._guard_pid = 0

    def guard(self) -> None:
        """Forks a watcher that kills all sessions if this process is killed. Call it before any thread runs. Raises UserError
        where no further process can start.

        The watcher reads the sessions from a pipe. When the pipe ends, this process has ended.
        """
        reader, self._guard = os.pipe()
        try:
            self._guard_pid = os.fork()
        except OSError:
            for end in (reader, self._guard):
                os.close(end)
            self._guard = None
            raise cannot_start("the launcher's watcher") from None
        if self._guard_pid == 0:
            os.close(self._guard)
            _watch_over(reader)
        os.close(reader)

    def adopt(self) -> None:
        """Makes orphans of the ranks children of this process, so that it can end them."""
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
        aside: bool = False,
    ) -> int:
        """Starts a process in a new session and returns its pid. Raises UserError where the program cannot start.

        One that is `aside` belongs to no attempt: `kill_left` leaves it alone, and `close` ends it.
        """
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
        except OSError as error:
            from .program_start import explained  # imported late: only this failure uses it

            raise explained(argv, cwd, error.errno or 0, error.filename or argv[0], what) from None
        except ValueError as error:
            raise UserError(what, f"{argv[0]}: {error}", allowed="words and variables without a zero byte") from None
        self._children[child.pid] = child
        if aside:
            self._aside.add(child.pid)
        self.own(child.pid)
        return child.pid

    def clean_up(self, folder: str) -> None:
        """The watcher removes this run folder if this process is killed."""
        self._folders.append(folder)
        self._tell_guard(f"-{folder}\n")

    def own(self, session: int) -> None:
        """Takes over a session, such as that of a rank that an engine started: it ends with the others."""
        leader = stat_of(session)
        if leader is not None:
            self._sessions[session] = leader.born
            self._tell_guard(f"+{session} {leader.born}\n")

    def release(self, pid: int) -> None:
        """From now on the caller ends and collects this child, which is aside; `close` leaves it alone."""
        self._children.pop(pid, None)
        self._aside.discard(pid)
        self._released.add(pid)
        if self._sessions.pop(pid, None) is not None:
            self._tell_guard(f"~{pid}\n")

    def forget_ended(self) -> None:
        """Forgets the sessions in which nothing runs any more. Call it when one of their leaders has ended."""
        alive = {stat.session for stat in below(processes())}
        for session in self._sessions.keys() - alive:
            del self._sessions[session]
            self._tell_guard(f"~{session}\n")

    def reap(self) -> None:
        """Collects every child that has ended, adopted orphans too."""
        lost_leader = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            child = self._children.pop(pid, None)
            self._aside.discard(pid)
            lost_leader |= pid in self._sessions
            if child is not None:
                child.returncode = os.waitstatus_to_exitcode(status)
                self._on_exit(pid, child.returncode)
        if lost_leader:
            self.forget_ended()

    def left(self) -> list[Stat]:
        """The processes that are left of all that was started: those in its sessions, and adopted orphans.

        A child counts until it has been reaped. Those aside do not count.
        """
        return self._left(processes())

    def _left(self, found: Sequence[Stat]) -> list[Stat]:
        me, left = os.getpid(), []
        for stat in below(found):
            if stat.session in self._aside:
                continue
            child = stat.parent == me and stat.pid != self._guard_pid and stat.pid not in self._released
            if child or (stat.session in self._sessions and not stat.ended):
                left.append(stat)
        return left

    def kill_left(self) -> bool:
        """Kills what is left. False once nothing is: then everything started so far is forgotten."""
        found = processes()
        left = self._left(found)
        left += [stat for stat in strays(found, self._folders) if stat not in left and stat.session not in self._aside]
        for stat in left:
            send(stat.pid, stat.born, signal.SIGKILL)
        if not left:
            self._sessions = {session: born for session, born in self._sessions.items() if session in self._aside}
            self._tell_guard("=\n")
            for session, born in self._sessions.items():
                self._tell_guard(f"+{session} {born}\n")
        return bool(left)

    def close(self) -> None:
        """Kills and collects whatever is left. Processes aside that were told to end have a moment for it."""
        for _ in range(ASIDE_ROUNDS):
            self.reap()
            if not self._aside:
                break
            select.select([], [], [], ASIDE_POLL_S)
        for _ in range(50):
            self.reap()
            self._aside.clear()  # one that starts again is killed as well
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
    """The watcher's whole life: reads sessions, and kills them if the supervisor ends without having said `q`."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for fd in (0, 1, 2):  # whoever reads our output must not wait for this process
        with contextlib.suppress(OSError):
            os.close(fd)
    sessions: dict[int, int] = {}
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
            elif line.startswith(b"~"):
                sessions.pop(int(line[1:]), None)
            else:
                session, born = line[1:].split()
                sessions[int(session)] = int(born)
    for _ in range(50):
        found = processes()
        left = [*_members(found, sessions), *strays(found, folders)]
        for stat in left:
            send(stat.pid, stat.born, signal.SIGKILL)
        if not left:
            break
        select.select([], [], [], 0.02)
    for folder in folders:
        remove_folder(folder)
    os._exit(0)


def _members(found: Sequence[Stat], sessions: Mapping[int, int]) -> list[Stat]:
    """The processes of these sessions, given with the start times of their leaders. A session lives on without its leader, and
    keeps its number; a leader that started at another time leads a later session."""
    leaders = {stat.pid: stat.born for stat in found}
    return [
        stat
        for stat in found
        if stat.session in sessions
        and not stat.ended
        and leaders.get(stat.session, sessions[stat.session]) == sessions[stat.session]
    ]
