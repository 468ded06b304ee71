"""Values that know where they came from, and the limits of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

from algorun.errors import UserError

T = TypeVar("T")

MOST_RESTARTS = 1000
NEVER_S = 1e9  # 30 years


@dataclass(frozen=True, slots=True)
class Sourced(Generic[T]):
    """A decided value and the file, option or rule that decided it."""

    value: T
    source: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Every wait of a job, in seconds. Each can be set by an environment variable `ALGORUN_<NAME>`."""

    gate_s: float = 600.0  # until all hosts have met
    prepare_s: float = 1800.0  # for a host to fetch its code and install what it requires
    heartbeat_s: float = 1.0  # between two signs of life, both ways
    heartbeat_timeout_s: float = 10.0  # silence after which a host counts as lost
    blame_s: float = 1.0  # after the first failure: how long others may report an older one
    hang_s: float = 600.0  # without a step of an optimizer, or ten times the longest step; "off" for never
    grace_s: float = 100.0  # from a stop until SIGKILL; SageMaker itself kills after 120
    kill_s: float = 1.5  # from SIGTERM to SIGKILL when the job has already failed
    restart_s: float = 60.0  # from the end of an attempt's ranks until all hosts are ready for the next one
    leave_s: float = 5.0  # how long the leader waits for the others to leave

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Limits:
        """Limits with the environment's wishes.

        Raises UserError on a value that is not a positive number, and where hosts would be lost between two signs of life.
        """
        wishes: dict[str, float] = {}
        for field in fields(cls):
            name = f"ALGORUN_{field.name.upper()}"
            if name in environ:
                off = field.name == "hang_s" and environ[name] == "off"
                wishes[field.name] = NEVER_S if off else seconds(name, environ[name])
        limits = cls(**wishes)
        if limits.heartbeat_s >= limits.heartbeat_timeout_s:
            raise UserError(
                "ALGORUN_HEARTBEAT_S",
                f"{limits.heartbeat_s:g} s between two signs of life, and a host is lost after {limits.heartbeat_timeout_s:g}",
                allowed="less than ALGORUN_HEARTBEAT_TIMEOUT_S",
            )
        return limits


def seconds(where: str, raw: str) -> float:
    """A positive, finite number of seconds."""
    try:
        value = float(raw)
    except ValueError:
        value = -1.0
    if not 0 < value < NEVER_S:
        raise UserError(where, f"{raw!r} is not a positive number of seconds", allowed="a number above 0")
    return value


def count(where: str, raw: object, most: int = 4096, least: int = 1) -> int:
    """A whole number from `least` to `most`."""
    try:
        value = int(str(raw).strip())
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise UserError(where, f"{raw!r} is not a whole number from {least} to {most}", allowed=f"{least} to {most}")
    return value
