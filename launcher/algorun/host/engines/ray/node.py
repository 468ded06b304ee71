"""This host's Ray node: `ray start --block`, as its output tells of it."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

from algorun.common.errors import ExitCode, exit_code
from algorun.control.failures.failure import Failure

# Ray prints this once its head has the node in its table.
ALIVE = b"Ray runtime started."
# Ray looks at its processes once a second, and prints the name and exit code of each that has ended.
DYING = b"Some Ray subprocesses exited unexpectedly:"
ENDED = re.compile(rb"\b(\w+) (?:\x1b\[[\d;]*m)*\[exit code=(-?[0-9]{1,9})\]")
LOOKS_S = 1.0


class RayNode:
    """Reads the output of `ray start`. Calls `on_alive()` once, and `on_failed(failure)` once if a process of Ray ends."""

    def __init__(self, host: str, on_alive: Callable[[], None], on_failed: Callable[[Failure], None]) -> None:
        self._host, self._on_alive, self._on_failed = host, on_alive, on_failed
        self._dying = self._failed = False
        self.is_alive = False

    def read(self, lines: bytes) -> bytes:
        """Reads whole lines, and returns them."""
        if not self.is_alive and ALIVE in lines:
            self.is_alive = True
            self._on_alive()
        self._dying = self._dying or DYING in lines
        found = ENDED.search(lines) if self._dying and not self._failed else None
        if found:
            returncode = int(found[2])
            how = f"ended by signal {-returncode}" if returncode < 0 else f"ended with {returncode}"
            self._fail(f"Ray's process {found[1].decode()} {how}", LOOKS_S)
        return lines

    def starter_ended(self, returncode: int, tail: str) -> None:
        """`ray start` has ended: the node has, too."""
        last = next((line for line in reversed(tail.splitlines()) if line.strip()), "")
        name = f" ({signal.Signals(-returncode).name})" if -returncode in set(signal.Signals) else ""
        said = f": {last.strip()}" if last and returncode > 0 else ""
        self._fail(f"ray start ended with {exit_code(returncode)}{name}{said}", 0.0)

    def _fail(self, text: str, age_s: float) -> None:
        if not self._failed:
            self._failed = True
            self._on_failed(Failure("node", self._host, ExitCode.LOST, text, age_s=age_s))
