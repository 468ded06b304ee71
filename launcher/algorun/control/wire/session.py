"""What two sides say to each other over all connections of a session: nothing is lost or heard twice. Pure."""

from __future__ import annotations

from collections import deque

from algorun.common.fast_dataclasses import replace

from .messages import ClockAsked, ClockTold, Heartbeat, Hello, Message, Nonce, Refuse, Welcome

# They belong to one connection, or are worthless later. All others are counted, and kept until they were heard.
FLEETING = (Nonce, Hello, Welcome, Refuse, Heartbeat, ClockAsked, ClockTold)


class Session:
    """One side's account of what it has said and heard.

    Messages are counted and not numbered: one connection keeps their order, and the next one begins with the first
    message that the other side has not heard. `id` is known to both sides only.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        self.heard = 0
        self._said: deque[Message] = deque()  # what the other side may not have heard
        self._known = 0  # how many of this side's messages the other one has heard for certain

    def say(self, message: Message) -> Message:
        """The message to send. It is kept until the other side has heard it. A heartbeat says how many were heard here."""
        if isinstance(message, Heartbeat):
            return replace(message, heard=self.heard)
        if not isinstance(message, FLEETING):
            self._said.append(message)
        return message

    def hear(self, message: Message) -> None:
        """Counts a message of the other side. Raises ValueError where it claims to have heard what was never said."""
        if isinstance(message, Heartbeat) and message.heard is not None:
            self.missed(message.heard)
        elif not isinstance(message, FLEETING):
            self.heard += 1

    def missed(self, heard: int) -> list[Message]:
        """The messages that the other side still has to hear, where it has heard `heard` in all.

        Raises ValueError where it cannot have heard that many.
        """
        count = heard - self._known
        if not 0 <= count <= len(self._said):
            raise ValueError(f"heard {heard} messages of {self._known + len(self._said)}")
        for _ in range(count):
            self._said.popleft()
        self._known += count
        return list(self._said)
