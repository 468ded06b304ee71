"""What everything that acts on a host works with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from algorun.common.event_loop import Loop
from algorun.common.fast_dataclasses import dataclass
from algorun.control.failures.failure import Failure
from algorun.control.wire.messages import Message
from algorun.plan.engines.base import Programs

from .output.logs import Console
from .processes.owner import Owner


@dataclass(frozen=True, slots=True)
class Tools:
    """One host's loop, processes and console.

    `run_dir` is its folder for sockets and temporary files, `logs` the folder of its log files. `send` takes a message to
    the hub; `broken` hears that something of this host other than a rank has failed.
    """

    loop: Loop
    owner: Owner
    console: Console
    programs: Programs
    run_dir: str
    logs: Path
    send: Callable[[Message], None]
    broken: Callable[[Failure], None]

    def say(self, text: str) -> None:
        """A line of the launcher's own."""
        self.console.say(f"algorun: {text}")

    def warn(self, text: str) -> None:
        """A warning of the launcher's own."""
        self.say(f"warning: {text}")
