"""Checks the options of a bundled entrypoint with its own parser, in another process.

The process (train/algorun_train/jobs/check.py) starts while the hosts meet, so that a good job hardly waits for it. It
ends once it has been told the number of ranks.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from algorun.common.errors import ExitCode, UserError
from algorun.host.processes.owner import kill_sessions
from algorun.job.entry import Entry

if TYPE_CHECKING:  # `algorun plan` checks options, and needs nothing else of a host that runs
    from algorun.common.event_loop import Timer
    from algorun.host.tools import Tools

LIMIT_S = 10.0  # for the check; after that (a file on a disk that does not answer) it is left to the ranks to refuse their options
LONGEST = 4096  # characters of an error


def _argv(entry: Entry, python: str) -> list[str]:
    return [python, "-I", "-m", "algorun_train.jobs.check", entry.target, *entry.args]


def _error(code: int, text: str) -> UserError | None:
    """The error that the check has printed; None where the options are right, or where it could not tell."""
    if code != ExitCode.CONFIGURATION or not text.startswith("error: "):
        return None
    where, _, what = text[:LONGEST].strip().removeprefix("error: ").partition(": ")
    return UserError(where, what)


def check(entry: Entry, python: str, ranks: Sequence[int]) -> tuple[str, ...]:
    """For a plan: lines about ranks that compute together. `ranks`: of each host. Raises UserError where they would refuse their
    options."""
    if entry.kind != "bundled":
        return ()
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            _argv(entry, python), input=f"{' '.join(map(str, ranks))}\n", cwd=entry.cwd, capture_output=True, text=True,
            errors="replace", timeout=LIMIT_S, check=False,
        )  # fmt: skip
        if error := _error(done.returncode, done.stderr):
            raise error
        if not done.returncode:
            return tuple(done.stdout.splitlines())
    return ()


class OptionCheck:
    """At most one check on this host. `on_wrong(error)` may be called at any time after its start."""

    def __init__(self, tools: Tools, on_wrong: Callable[[UserError], None]) -> None:
        self._tools, self._on_wrong = tools, on_wrong
        self._said = f"{tools.run_dir}/options.txt"
        self._stdin: int | None = None
        self._then: Callable[[], None] | None = None
        self._timer: Timer | None = None
        self._begun = False
        self._wrong = False
        self.pid = 0

    def start(self, entry: Entry, python: str) -> None:
        """Starts the check once, where the entrypoint is a bundled one."""
        if self._begun or entry.kind != "bundled":
            return
        self._begun = True
        reader, self._stdin = os.pipe()
        said = os.open(self._said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        argv = _argv(entry, python)
        try:
            self.pid = self._tools.owner.start(argv, os.environ, entry.cwd, said, said, what="options", stdin=reader)
        except UserError:
            pass  # the ranks cannot start either, and say why
        finally:
            os.close(reader)
            os.close(said)

    def when_right(self, ranks: int, then: Callable[[], None]) -> None:
        """Calls `then` once the options are known to suit `ranks` ranks. It is never called if they do not."""
        if self._wrong:
            return
        if not self.pid:
            then()
            return
        self._then = then
        self._timer = self._tools.loop.after(LIMIT_S, self.kill)
        self._tell(f"{ranks}\n".encode())

    def ended(self, returncode: int) -> None:
        """The process has ended."""
        self.pid = 0
        self.close()
        with open(self._said, encoding="utf-8", errors="replace") as file:
            error = _error(returncode, file.read(LONGEST))
        then, self._then = self._then, None
        if error is not None:
            self._wrong = True
            self._on_wrong(error)
        elif then is not None:
            then()

    def kill(self) -> None:
        """Kills the check: the job ends or stops."""
        if self.pid:
            kill_sessions([self.pid])

    def close(self) -> None:
        self._tell(b"")
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self, text: bytes) -> None:
        """Writes to the process and closes its stdin."""
        if self._stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._stdin, text)
            os.close(self._stdin)
            self._stdin = None
