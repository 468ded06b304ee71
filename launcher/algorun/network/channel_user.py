"""What the control channel calls, on whichever host: the supervisor has these methods."""

from __future__ import annotations

from typing import Protocol

from algorun.control.wire.messages import Message


class ChannelUser(Protocol):
    """All methods are called in the loop's thread."""

    def receive(self, message: Message) -> None:
        """A message of the hub. Raises ValueError on one that no hub may send."""

    def hub_lost(self, reason: str) -> None:
        """The hub has closed the connection. Its silence is no such loss: the state machine judges that."""

    def leave(self) -> None:
        """Leaves, if nothing else is left to wait for: no other host needs the hub any more."""

    def tell(self, text: str) -> None:
        """Prints a line in this host's log."""
