"""The processes that stand for the hosts of a job, and their output as log streams."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LONGEST_LINE = 256 * 1024  # bytes of an event in CloudWatch
CHUNK = 256 * 1024  # bytes read at once
NOT_FOUND = 127  # a shell's exit code for a program that does not exist
PR_SET_PDEATHSIG = 1  # prctl(2)
DRAIN_S = 2.0  # after all hosts have ended: for output of processes that they left
CLOSE_S = 30.0  # from SIGKILL to the end of a process


class LogStream:
    """The lines of one host, each with the time at which it was read."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "ab")  # noqa: SIM115  open as long as its host runs
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Output of the host. Keeps an unfinished line for later."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        self._write(lines)

    def close(self) -> None:
        """Writes an unfinished last line."""
        self._write([self._rest])
        self._file.close()

    def _write(self, lines: Sequence[bytes]) -> None:
        now = int(time.time() * 1000)
        events = []
        for line in lines:
            for start in range(0, len(line), LONGEST_LINE):  # CloudWatch has no empty events
                text = line[start : start + LONGEST_LINE].decode("utf-8", "replace")
                events.append(json.dumps({"timestamp": now, "ingestionTime": now, "message": text}))
        if events:
            self._file.write("".join(f"{event}\n" for event in events).encode())
            self._file.flush()


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """How the process of a host begins: in `folder`, with its output in `stream`, after `enter` (a `preexec_fn`). `first` is
    the first text of its output."""

    folder: Path
    stream: Path
    enter: Callable[[], None] | None = None
    first: str = ""


class HostProcesses:
    """One process for each host. They end with this process, even if it is killed."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}  # of the hosts that have ended
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._selector = selectors.DefaultSelector()
        self._ended_at = 0.0

    def start(self, host: str, words: Sequence[str], environ: Mapping[str, str], how: ProcessStart) -> None:
        """Starts the process of one host in a session of its own; its output goes to the log stream."""
        log = LogStream(how.stream)
        log.feed(how.first.encode())
        try:
            process = subprocess.Popen(
                words,
                env=dict(environ),
                cwd=how.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_begin(how.enter),
            )
        except OSError as error:
            log.feed(f"{words[0]}: {error.strerror}\n".encode())
            log.close()
            self.codes[host] = NOT_FOUND
            return
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._running[host] = process
        self._selector.register(process.stdout, selectors.EVENT_READ, log)

    @property
    def have_ended(self) -> bool:
        """True once no host runs and its output is read."""
        if self._running:
            return False
        return not self._selector.get_map() or time.monotonic() > self._ended_at + DRAIN_S

    def processes(self) -> dict[str, int]:
        """The process of each host that runs."""
        return {host: process.pid for host, process in dict(self._running).items()}

    def pump(self, timeout_s: float) -> None:
        """Waits for output, at most `timeout_s`, and writes it; notices hosts that have ended."""
        if self._selector.get_map():
            for key, _ in self._selector.select(timeout_s):
                self._take(key)
        elif self._running:
            time.sleep(min(timeout_s, 0.05))
        for host, process in list(self._running.items()):
            if _has_ended(process.pid):
                # As a container ends with its first process. Once that is collected, its number may be a stranger's.
                send_signal(process.pid, signal.SIGKILL, group=True)
                self.codes[host] = _exit_code(process.wait())
                del self._running[host]
                self._ended_at = time.monotonic()

    def _take(self, key: selectors.SelectorKey) -> None:
        pipe: IO[bytes] = key.fileobj  # type: ignore[assignment]
        data = os.read(pipe.fileno(), CHUNK)
        if data:
            key.data.feed(data)
        else:
            self._selector.unregister(pipe)
            key.data.close()
            pipe.close()

    def signal(self, number: int) -> None:
        """A signal to the process of each host; SIGKILL reaches its children too."""
        for process in self._running.values():
            send_signal(process.pid, number, group=number == signal.SIGKILL)

    def close(self) -> None:
        """Kills what still runs and closes the streams. Waits for CLOSE_S at most: a disk may hold a process for ever."""
        deadline = time.monotonic() + CLOSE_S
        while self._running and time.monotonic() < deadline:
            self.signal(signal.SIGKILL)
            self.pump(0.2)
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fileobj)
            key.data.close()
        self._selector.close()


def _has_ended(child: int) -> bool:
    """Whether a child has ended. It is not collected, so that its number stays its own."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _exit_code(returncode: int) -> int:
    return 128 - returncode if returncode < 0 else returncode


def send_signal(pid: int, number: int, *, group: bool) -> None:
    """Sends it to a process, or to its process group. Nothing happens if there is none, or if it is another user's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


def _begin(enter: Callable[[], None] | None) -> Callable[[], None]:
    """A `preexec_fn`: the kernel kills the child when this process ends. The launcher's watcher then ends its ranks."""
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def begin() -> None:
        if enter is not None:
            enter()  # first: a new user namespace clears what prctl has set
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it has ended already
            os._exit(128 + signal.SIGKILL)

    return begin
