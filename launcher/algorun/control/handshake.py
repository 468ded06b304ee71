"""A host's handshake with the hub, over all its connections. Pure.

REACHING --nonce--> GREETED --welcome--> JOINED --another connection--> RETURNING --welcome--> JOINED

The hub greets each connection with a nonce. The host answers with its hello, and the hub takes the connection with a
welcome, at once or after it has looked up the host's name.
"""

from __future__ import annotations

from enum import Enum

from algorun.common.fast_dataclasses import replace

from . import proof
from .messages import Heartbeat, Hello, Message, Nonce, Welcome
from .session import Session


class Phase(Enum):
    REACHING = "reaching"  # no hub has greeted this host yet
    GREETED = "greeted"  # a hub has greeted this host, and has not taken it yet
    JOINED = "joined"  # the hub has taken the connection in use: messages go out
    RETURNING = "returning"  # the hub knows this host, and has not taken the connection in use yet


class Applicant:
    """A host as it introduces itself: its hello, and the job's token."""

    def __init__(self, hello: Hello, token: str) -> None:
        self.hello, self._token = hello, token

    def answer(self, nonce: str, session: str, heard: int = 0) -> Hello:
        """The hello for a connection that began with this nonce. The session's id is `session`.

        `heard` is how many messages of the hub this host has heard in the session.
        """
        mac = proof.mac(self._token, nonce, self.hello.host)
        return replace(self.hello, mac=mac, session=session, heard=heard)


class Handshake:
    """Where a host stands with the hub. A hub that has been silent for `silence_s` is worth another connection."""

    def __init__(self, now: float, applicant: Applicant, session: str, silence_s: float) -> None:
        self.phase = Phase.REACHING
        self._applicant, self._silence_s = applicant, silence_s
        self._session = Session(session)
        self._heard_at = now

    @property
    def greeted(self) -> bool:
        """True once a hub has greeted this host, over whichever connection."""
        return self.phase is not Phase.REACHING

    def say(self, message: Message) -> Message | None:
        """The message to send now; None where it has to wait for the hub's welcome."""
        counted = self._session.say(message)
        return counted if self.phase is Phase.JOINED else None

    def wants_another(self, now: float) -> bool:
        """True where the hub is silent. A hub that is still looking up this host's name may be silent."""
        return self.phase in (Phase.JOINED, Phase.RETURNING) and now - self._heard_at >= self._silence_s

    def connection_gone(self) -> None:
        """The connection in use has ended, or another one takes its place."""
        if self.phase is Phase.JOINED:
            self.phase = Phase.RETURNING

    def check(self, message: Message, *, first: bool) -> None:
        """Raises ValueError where a hub cannot say this now. `first`: it is the first line over a spare connection."""
        if (first or not self.greeted) and not isinstance(message, Nonce):
            raise ValueError("no nonce")

    def hear(self, now: float, message: Message) -> list[Message]:
        """What to answer over the same connection. Raises ValueError where the hub claims to have heard too much."""
        self._session.hear(message)
        self._heard_at = now
        match message:
            case Nonce(nonce):
                if self.phase is Phase.REACHING:
                    self.phase = Phase.GREETED
                return [self._applicant.answer(nonce, self._session.id, self._session.heard)]
            case Welcome(heard):
                missed = self._session.missed(heard)
                self.phase = Phase.JOINED
                return missed
            case _:
                return []


def unheard(message: Message) -> bool:
    """True where the hub says that this host's signs of life do not arrive."""
    return isinstance(message, Heartbeat) and message.unheard
