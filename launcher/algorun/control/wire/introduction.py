"""How a host introduces itself to the hub, over all the host's connections. Pure.

REACHING --a line that proves the hub--> PROVEN --welcome--> JOINED --another connection--> RETURNING --welcome--> JOINED

The hub greets each connection with a nonce. The host answers with its hello, which holds a challenge; from then on all
lines are sealed (seal.py). The hub takes the connection with a welcome, at once or after it has looked up the host's name.
A host believes nothing before the hub has proved that it holds the job's token, and nothing that is not sealed.
"""

from __future__ import annotations

from enum import Enum

from algorun.common.fast_dataclasses import replace

from . import wire
from .messages import Heartbeat, Hello, Message, Nonce, Refuse, Welcome
from .seal import Seal, body
from .session import Session


class ContactPhase(Enum):
    REACHING = "reaching"  # no hub has proved itself to this host yet
    PROVEN = "proven"  # a hub has proved itself, and has not taken this host yet
    JOINED = "joined"  # the hub has taken the connection in use: messages go out
    RETURNING = "returning"  # the hub knows this host, and has not taken the connection in use yet


class Applicant:
    """A host as it introduces itself: its hello, and the job's token."""

    def __init__(self, hello: Hello, token: str) -> None:
        self.hello, self._token = hello, token

    def answer(self, nonce: str, challenge: str, session: str, heard: int = 0) -> tuple[Hello, Seal]:
        """The hello for a connection that began with this nonce, and the connection's seal. The session's id is `session`.

        `challenge` is new (network/nonces.py). `heard` is how many messages of the hub this host has heard in the session.
        """
        hello = replace(self.hello, challenge=challenge, session=session, heard=heard)
        return hello, Seal(self._token, nonce, challenge, hello.host, hub=False)


def greeting(line: bytes) -> str:
    """The nonce of a hub's first line. Raises ValueError on any other line."""
    message = wire.decode(line)
    if not isinstance(message, Nonce):
        raise ValueError("no nonce")
    return message.nonce


def refusal(line: bytes) -> str:
    """Why a hub that proves nothing does not take this host: it holds another token. "" for any other line."""
    try:
        message = wire.decode(line)
    except ValueError:
        return ""
    return message.why if isinstance(message, Refuse) else ""


def introduced(token: str, nonce: str, line: bytes) -> tuple[Hello, Seal | None]:
    """On the hub: the hello in a host's first line, and the connection's seal; None where the host does not prove the token.

    Raises ValueError on anything that is no hello.
    """
    hello = wire.decode_hello(body(line))
    seal = Seal(token, nonce, hello.challenge, hello.host, hub=True)
    try:
        seal.open(line)
    except ValueError:
        return hello, None
    return hello, seal


class Introduction:
    """Where a host stands with the hub. A hub that has been silent for `silence_s` is worth another connection."""

    def __init__(self, now: float, applicant: Applicant, session: str, silence_s: float) -> None:
        self.phase = ContactPhase.REACHING
        self._applicant, self._silence_s = applicant, silence_s
        self._session = Session(session)
        self._heard_at = now

    @property
    def proven(self) -> bool:
        """True once a hub has proved itself to this host, over whichever connection."""
        return self.phase is not ContactPhase.REACHING

    def say(self, message: Message) -> Message | None:
        """The message to send now; None where it has to wait for the hub's welcome."""
        counted = self._session.say(message)
        return counted if self.phase is ContactPhase.JOINED else None

    def wants_another(self, now: float) -> bool:
        """True where the hub is silent. A hub that is still looking up this host's name may be silent."""
        return self.phase in (ContactPhase.JOINED, ContactPhase.RETURNING) and now - self._heard_at >= self._silence_s

    def connection_gone(self) -> None:
        """The connection in use has ended, or another one takes its place."""
        if self.phase is ContactPhase.JOINED:
            self.phase = ContactPhase.RETURNING

    def answer(self, nonce: str, challenge: str) -> tuple[Hello, Seal]:
        """The hello for a connection that began with this nonce, and the connection's seal."""
        return self._applicant.answer(nonce, challenge, self._session.id, self._session.heard)

    def hear(self, now: float, message: Message) -> list[Message]:
        """What to answer to a message that was sealed, over the same connection.

        Raises ValueError where the hub claims to have heard too much.
        """
        self._session.hear(message)
        self._heard_at = now
        if self.phase is ContactPhase.REACHING:
            self.phase = ContactPhase.PROVEN
        if not isinstance(message, Welcome):
            return []
        missed = self._session.missed(message.heard)
        self.phase = ContactPhase.JOINED
        return missed


def unheard(message: Message) -> bool:
    """True where the hub says that this host's signs of life do not arrive."""
    return isinstance(message, Heartbeat) and message.unheard
