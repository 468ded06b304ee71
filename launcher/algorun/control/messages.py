"""Control messages: one JSON object a line, checked on arrival. Pure.

From a host to the hub: hello, ready, heartbeat, fail, spoilt, left, hang, stack, stacked, stop, done, bye, and for
mpirun daemon and daemon_exit.
From the hub to a host: nonce, welcome, go, stacks, restart, stop, end, refuse, heartbeat, and daemon and daemon_exit passed on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from algorun.codec import from_json, loads, to_json

from .failure import Failure, Left
from .hang import Stack

LONGEST = 64 * 1024  # bytes of one message, newline included; `go` of 1,000 hosts is below 32 KiB

MOST_FRAMES = 60  # of a stack, innermost first
MOST_NAME = 150  # characters of a file or a function there
# Characters of each text in a message that would be too long; one may take 12 bytes, and a verdict holds eleven texts.
LONGEST_TEXT = 6000
LONGEST_ERROR = 450
HIGHEST_PORT = 65535
MOST_STEPS = (1 << 64) - 1  # what the step counter holds
MOST_SLOTS = 4096  # as for --slots; every host plans each of them

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the job ended, the same on all hosts. kind: ok, stopped or failed."""

    kind: str
    code: int
    failure: Failure | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Hello:
    """A host's first message: who it is, and what all hosts must agree on."""

    host: str
    digest: Mapping[str, str]
    error: str = ""  # this host's configuration error, which ends the job

    def message(self, mac: str = "", session: str = "", heard: int = 0) -> Message:
        """`session` and `heard` let the host come back over another connection (control/session)."""
        about = {"mac": mac, "session": session, "heard": heard}
        return {"type": "hello", **to_json(self), "digest": dict(self.digest), **about}


@dataclass(frozen=True, slots=True)
class Ready:
    """A host has its code and could start: what it carries, and what all hosts must agree on now."""

    slots: int
    digest: Mapping[str, str]
    master_addr: str = ""  # of the host that carries rank 0: where it will listen
    master_port: int = 0
    engine_port: int = 0  # another one there, for an engine's own rendezvous
    newest: float = 0.0  # stamp of this host's newest checkpoint, by its own clock

    def message(self) -> Message:
        return {"type": "ready", **to_json(self), "digest": dict(self.digest)}


@dataclass(frozen=True, slots=True)
class Go:
    """All hosts have met: the slots of each and where rank 0 listens."""

    attempt: int
    master_addr: str
    master_port: int
    slots: Mapping[str, int] = field(default_factory=dict)
    engine_port: int = 0

    def message(self) -> Message:
        return {
            "type": "go",
            "attempt": self.attempt,
            "master_addr": self.master_addr,
            "master_port": self.master_port,
            "slots": dict(self.slots),
            "engine_port": self.engine_port,
        }


def mac(token: str, nonce: str, host: str) -> str:
    """A host's proof that it holds the job's token (HMAC-SHA256, hexadecimal)."""
    import hmac  # hmac and OpenSSL cost a start of one host 6 ms, and it has no peer

    return hmac.new(token.encode("utf-8", "surrogateescape"), f"{nonce} {host}".encode(), "sha256").hexdigest()


def same(left: str, right: str) -> bool:
    """Compares two proofs in constant time."""
    import hmac

    return hmac.compare_digest(left.encode(), right.encode())


def encode(message: Message) -> bytes:
    """One line. A traceback that makes it too long loses its beginning, any other text its end."""
    for most in (None, LONGEST_TEXT, LONGEST_ERROR):
        cut = message if most is None else _shorter(message, most)
        line = json.dumps(cut, separators=(",", ":")).encode() + b"\n"
        if len(line) <= LONGEST:
            return line
    raise ValueError(f"a {message.get('type')} message of {len(line)} bytes is longer than {LONGEST}")


def _shorter(message: Message, most: int) -> Message:
    """The same with every text that people read cut to `most` characters; a digest is compared, and stays."""
    cut = dict(message)
    for key, value in message.items():
        if isinstance(value, str):
            cut[key] = value[-most:] if key == "traceback" else value[:most]
        elif isinstance(value, dict) and key in ("failure", "verdict"):
            cut[key] = _shorter(value, most)
    return cut


def decode(line: bytes) -> Message:
    """The message of a line. Raises ValueError on anything that is not one."""
    if len(line) > LONGEST:
        raise ValueError("line too long")
    try:
        message = loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ValueError("not a message")
    return message


def _numbers(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return {str(key): from_json(int, item, key) for key, item in value.items()}


def _texts(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return {str(key): from_json(str, item, key) for key, item in value.items()}


def _fields(message: Message, *without: str, **kinds: type) -> dict[str, Any]:
    """The message's own fields, all of them and no others."""
    rest = {key: value for key, value in message.items() if key not in ("type", "digest", *without)}
    if set(rest) != set(kinds):
        raise ValueError(f"{message['type']} with fields {sorted(rest)}")
    return {name: from_json(kinds[name], value, name) for name, value in rest.items()}


def parse_hello(message: Message) -> Hello:
    """Raises ValueError where fields are missing or of another type."""
    return Hello(
        digest=_texts(message.get("digest")), **_fields(message, "mac", "session", "heard", host=str, error=str)
    )


def parse_session(message: Message) -> tuple[str, int]:
    """Of a hello: the id of the host's session, and how many messages it has heard in it."""
    session: str = from_json(str, message.get("session"), "session")
    if not session or not session.isascii():
        raise ValueError("a hello without a session")
    return session, from_json(int, message.get("heard"), "heard")


def parse_ready(message: Message) -> Ready:
    """Raises ValueError where fields are missing or of another type."""
    fields = _fields(message, slots=int, master_addr=str, master_port=int, engine_port=int, newest=float)
    _check(fields["slots"], "slots", 1, MOST_SLOTS)
    for name in ("master_port", "engine_port"):
        _check(fields[name], name, 0, HIGHEST_PORT)
    return Ready(digest=_texts(message.get("digest")), **fields)


def parse_go(message: Message) -> Go:
    """Raises ValueError where fields are missing, of another type, or more than a host can plan."""
    slots = _numbers(message.get("slots"))
    for host, count in slots.items():
        _check(count, f"slots of {host}", 1, MOST_SLOTS)
    numbers = [from_json(int, message.get(name), name) for name in ("attempt", "master_port", "engine_port")]
    for name, number in zip(("master_port", "engine_port"), numbers[1:], strict=True):
        _check(number, name, 0, HIGHEST_PORT)
    return Go(numbers[0], from_json(str, message.get("master_addr"), "master_addr"), numbers[1], slots, numbers[2])


def parse_told(message: Message) -> list[str]:
    """The hosts that a leader has told of another leader's verdict, as it says in its bye."""
    told = message.get("told", [])
    if not isinstance(told, list):
        raise ValueError("not a list")
    return [from_json(str, host, "told") for host in told]


def _check(number: int, name: str, least: int, most: int) -> None:
    if not least <= number <= most:
        raise ValueError(f"{name} {number}, not {least} to {most}")


def parse_failure(message: Message) -> Failure:
    """Raises ValueError where fields are missing, of another type, or no failure's."""
    failure: Failure = from_json(Failure, message.get("failure"), "failure")
    if not 0 < failure.code < 256:
        raise ValueError(f"a failure with code {failure.code}")
    return failure


def parse_verdict(message: Message) -> Verdict:
    """Raises ValueError where fields are missing, of another type, or code and failure contradict each other."""
    verdict: Verdict = from_json(Verdict, message.get("verdict"), "verdict")
    if not 0 <= verdict.code < 256 or (verdict.code == 0) != (verdict.failure is None):
        raise ValueError(f"a verdict with code {verdict.code} and failure {verdict.failure}")
    return verdict


def parse_restart(message: Message) -> tuple[int, Failure]:
    """The number of the attempt that follows, and what ended the one before."""
    return from_json(int, message.get("attempt"), "attempt"), parse_failure(message)


def restart(attempt: int, cause: Failure) -> Message:
    return {"type": "restart", "attempt": attempt, "failure": to_json(cause)}


def left(gone: Left) -> Message:
    """A rank has left with 0 while its host's job goes on."""
    return {"type": "left", "rank": gone.rank, "step": gone.step, "attempt": gone.attempt}


def parse_left(message: Message, host: str) -> Left:
    """`host` has sent it. Raises ValueError where fields are missing, of another type or negative."""
    fields = _fields(message, rank=int, step=int, attempt=int)
    for name, number in fields.items():
        _check(number, name, 0, MOST_STEPS)
    return Left(host, **fields)


def hang(idle_s: float) -> Message:
    """A rank of this host has made no step for so long."""
    return {"type": "hang", "idle_s": idle_s}


def parse_hang(message: Message) -> float:
    idle_s: float = from_json(float, message.get("idle_s"), "idle_s")
    return idle_s


def stack(found: Stack) -> Message:
    """What one rank is doing, as much as fits a message; its host keeps all of it."""
    frames = tuple(replace(f, file=f.file[-MOST_NAME:], function=f.function[-MOST_NAME:]) for f in found.frames)
    short = replace(found, frames=frames[:MOST_FRAMES], text="", source=found.source[:MOST_NAME])
    return {"type": "stack", "stack": to_json(short)}


def parse_stack(message: Message) -> Stack:
    found: Stack = from_json(Stack, message.get("stack"), "stack")
    return found


def fail(failure: Failure, *, spoils: bool = False) -> Message:
    """`spoils`: a rank could not save, so that a stop is none that went well."""
    return {"type": "spoilt" if spoils else "fail", "failure": to_json(failure)}


def bye(verdict: Verdict | None) -> Message:
    """A host leaves. The hub asks why where it has given no verdict."""
    failure = verdict.failure if verdict is not None else None
    why = "" if failure is None else failure.message if failure.rank is None else failure.headline()
    return {"type": "bye", "why": why}


def end(verdict: Verdict) -> Message:
    return {"type": "end", "verdict": to_json(verdict)}
