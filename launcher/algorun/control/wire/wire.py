"""The one codec of control messages: a message is one JSON object on one line, `{"type": NAME, FIELDS..}`. Pure.

`decode` takes exactly the fields of the message's class, each of its own type and within its bounds; anything else is
a ValueError. All hosts of a job run one version of algorun. Only a hello is read from other versions as well, so that
the hub can name both versions and end the job.
"""

from __future__ import annotations

import json
import math

from algorun.common import __version__
from algorun.common.codec import fields_of, from_json, loads
from algorun.common.fast_dataclasses import fields
from algorun.control.failures.failure import Failure, RankLeft
from algorun.control.failures.non_finite import GRADIENT, LOSS, WEIGHT, NonFiniteValue
from algorun.timing.activities import NAMES as ACTIVITIES

from .messages import (
    FROM_HOST,
    FROM_HUB,
    ClockAsked,
    ClockTold,
    DaemonEnded,
    End,
    Fail,
    Go,
    Hello,
    Load,
    Message,
    Nonce,
    Pace,
    Ready,
    Restart,
    SaveFailed,
    Verdict,
)
from .seal import is_nonce

LONGEST = 64 * 1024  # bytes of one message, newline included; `go` of 1,000 hosts is below 48 KiB
# Characters of each text in a message that would be too long; one may take 12 bytes, and a verdict holds eleven texts.
LONGEST_TEXT = 6000
LONGEST_ERROR = 450
HIGHEST_PORT = 65535
MOST_BYTES = 1 << 62  # of a memory or a disk
LARGEST_LOAD = 1e15  # seconds, shares, bytes per second
MOST_STEPS = (1 << 64) - 1  # what the step counter holds
LATEST = 1e10  # seconds of a monotonic clock: 300 years
MOST_SLOTS = 4096  # as for --slots; every host plans each of them. A host of an engine with a driver may have none
VERSION = "algorun version"  # its key in a hello's digest (plan/agreement.py)

CLASSES = {**FROM_HOST, **FROM_HUB}
NAMES = {kind: name for name, kind in CLASSES.items()}
_FIELDS = {name: frozenset(each.name for each in fields(kind)) for name, kind in CLASSES.items()}


def encode(message: Message) -> bytes:
    """One line. A traceback that makes it too long loses its beginning, any other text its end."""
    name = NAMES[type(message)]
    values = {"type": name, **fields_of(message)}
    for most in (None, LONGEST_TEXT, LONGEST_ERROR):
        cut = values if most is None else _shorter(values, most)
        line = json.dumps(cut, separators=(",", ":")).encode() + b"\n"
        if len(line) <= LONGEST:
            return line
    raise ValueError(f"a {name} message of {len(line)} bytes is longer than {LONGEST}")


def decode(line: bytes) -> Message:
    """The message of a line. Raises ValueError on anything that is not one."""
    values = _values(line)
    name = str(values.pop("type"))
    kind = CLASSES.get(name)
    if kind is None:
        raise ValueError(f"type {name!r}")
    if values.keys() != _FIELDS[name]:
        raise ValueError(f"{name} with fields {sorted(values)}")
    message: Message = from_json(kind, values, name)
    _check(message)
    return message


def decode_hello(line: bytes) -> Hello:
    """A host's first message. Raises ValueError on anything else.

    From another version of algorun: the fields that this version knows, as far as they are there.
    """
    values = _values(line)
    digest = values.get("digest")
    if values["type"] == "hello" and isinstance(digest, dict) and digest.get(VERSION, __version__) != __version__:
        known = _FIELDS[NAMES[Hello]]
        hello: Hello = from_json(Hello, {key: value for key, value in values.items() if key in known}, "hello")
        _check(hello)
        return hello
    message = decode(line)
    if not isinstance(message, Hello):
        raise ValueError("not a hello")
    return message


def _values(line: bytes) -> dict[str, object]:
    """A line's object with its `type`, a text."""
    if len(line) > LONGEST:
        raise ValueError("line too long")
    try:
        values = loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(values, dict) or not isinstance(values.get("type"), str):
        raise ValueError("not a message")
    return values


def _shorter(values: dict[str, object], most: int) -> dict[str, object]:
    """The same with every text that people read cut to `most` characters; a digest is compared, and stays."""
    cut = dict(values)
    for key, value in values.items():
        if isinstance(value, str):
            cut[key] = value[-most:] if key == "traceback" else value[:most]
        elif isinstance(value, dict) and key in ("failure", "verdict"):
            cut[key] = _shorter(value, most)
    return cut


def _check(message: Message) -> None:
    """Raises ValueError where a value of the right type is out of its bounds."""
    match message:
        case Hello(session=session, challenge=challenge):
            if not session or not session.isascii():
                raise ValueError("a hello without a session")
            if not is_nonce(challenge):
                raise ValueError("a hello without a challenge")
        case Nonce(nonce):
            if not is_nonce(nonce):
                raise ValueError("not a nonce")
        case Ready(slots=slots, tf_port=tf_port):
            _within(slots, "slots", 0, MOST_SLOTS)
            _ports(message)
            _within(tf_port, "tf_port", 0, HIGHEST_PORT)
        case Go(slots=slots_by_host):
            for host, count in slots_by_host.items():
                _within(count, f"slots of {host}", 0, MOST_SLOTS)
            _ports(message)
            for host, port in message.tf_ports.items():
                _within(port, f"tf_port of {host}", 1, HIGHEST_PORT)
        case Fail(failure) | SaveFailed(failure) | Restart(_, failure):
            _check_failure(failure)
        case End(verdict):
            _check_verdict(verdict)
        case RankLeft():
            for name in ("rank", "step", "attempt"):
                _within(getattr(message, name), name, 0, MOST_STEPS)
        case NonFiniteValue():
            for name in ("rank", "step", "earliest", "names", "total", "attempt"):
                _within(getattr(message, name), name, 0, MOST_STEPS)
            if message.of not in (LOSS, GRADIENT, WEIGHT):
                raise ValueError(f"of {message.of}")
            _clock(message.at)
        case Pace(ranks=ranks):
            for each in ranks:
                _within(each.rank, "rank", 0, MOST_STEPS)
                seconds = each.at, each.queued, *each.activities
                if len(each.activities) != len(ACTIVITIES) or not all(map(math.isfinite, seconds)):
                    raise ValueError(f"times {each}")
        case Load(load=load):
            for name in ("ranks", "gpus", "idle", "throttled"):
                _within(getattr(load, name), name, 0, MOST_SLOTS)
            room = load.fullest
            numbers = (load.seconds, load.data, load.cpu, load.disk_read, load.network_in, load.memory)
            counts = (
                load.cores,
                load.workers,
                load.memory_limit_bytes,
                *((room.free_bytes, room.size_bytes) if room else ()),
            )
            # Of integers first: one of hundreds of digits is no float.
            if not all(each is None or 0 <= each <= MOST_BYTES for each in counts):
                raise ValueError("load: a count out of bounds")
            if not all(each is None or abs(each) < LARGEST_LOAD for each in numbers):
                raise ValueError("load: a number out of bounds")
        case ClockAsked(at):
            _clock(at)
        case ClockTold(asked_at, at):
            _clock(asked_at)
            _clock(at)
        case DaemonEnded(code=code):
            _within(code, "code", 0, 255)
        case _:
            pass


def _ports(message: Ready | Go) -> None:
    _within(message.master_port, "master_port", 0, HIGHEST_PORT)
    _within(message.engine_port, "engine_port", 0, HIGHEST_PORT)
    _within(message.jax_port, "jax_port", 0, HIGHEST_PORT)


def _check_failure(failure: Failure) -> None:
    if not 0 < failure.code < 256:
        raise ValueError(f"a failure with code {failure.code}")


def _check_verdict(verdict: Verdict) -> None:
    if not 0 <= verdict.code < 256 or (verdict.code == 0) != (verdict.failure is None):
        raise ValueError(f"a verdict with code {verdict.code} and failure {verdict.failure}")


def _clock(at: float) -> None:
    if not 0 <= at < LATEST:
        raise ValueError(f"time {at}")


def _within(number: int, name: str, least: int, most: int) -> None:
    if not least <= number <= most:
        raise ValueError(f"{name} {number}, not {least} to {most}")
