"""What a host's state machine asks its supervisor to do. Pure."""

from __future__ import annotations

from algorun.common.fast_dataclasses import dataclass
from algorun.control.wire.messages import Go, Message, Verdict


@dataclass(frozen=True, slots=True)
class ToHub:
    """Send this message; a failure in it is explained first: what this machine knows of it is added."""

    message: Message


@dataclass(frozen=True, slots=True)
class Start:
    """Start the ranks."""

    go: Go


@dataclass(frozen=True, slots=True)
class Signal:
    """To all ranks of this host: a request (SIGTERM) or the end (SIGKILL)."""

    number: int


@dataclass(frozen=True, slots=True)
class Conclude:
    """The verdict is known: write it down, end the ranks. `own`: this host has judged alone, and its failure is not explained."""

    verdict: Verdict
    own: bool = False


@dataclass(frozen=True, slots=True)
class EndProcesses:
    """Nothing that this host has started may live on."""


@dataclass(frozen=True, slots=True)
class Warn:
    """A line in this host's log."""

    text: str


Action = ToHub | Start | Signal | Conclude | EndProcesses | Warn
