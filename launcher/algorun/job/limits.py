"""The settings that travel together: every wait of a job, and the control channel."""

from __future__ import annotations

from collections.abc import Mapping

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass

from .settings import (
    ADDRESSES,
    BLAME_S,
    GATE_S,
    GRACE_S,
    HANG_S,
    HEARTBEAT_S,
    HEARTBEAT_TIMEOUT_S,
    KILL_S,
    LEAVE_S,
    PORT,
    PREPARE_S,
    RESTART_S,
    START_S,
    TIMES_S,
    TOKEN,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """Every wait of a job, in seconds. Each field is the setting of the same name."""

    gate_s: float = GATE_S.default
    prepare_s: float = PREPARE_S.default
    start_s: float = START_S.default
    heartbeat_s: float = HEARTBEAT_S.default
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S.default
    blame_s: float = BLAME_S.default
    hang_s: float = HANG_S.default
    times_s: float = TIMES_S.default
    grace_s: float = GRACE_S.default
    kill_s: float = KILL_S.default
    restart_s: float = RESTART_S.default
    leave_s: float = LEAVE_S.default

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Limits:
        """The limits that the environment sets.

        Raises UserError on a value that is not a positive number, and if the heartbeat interval is not shorter than its
        time-out.
        """
        limits = cls(
            gate_s=GATE_S.read(environ),
            prepare_s=PREPARE_S.read(environ),
            start_s=START_S.read(environ),
            heartbeat_s=HEARTBEAT_S.read(environ),
            heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S.read(environ),
            blame_s=BLAME_S.read(environ),
            hang_s=HANG_S.read(environ),
            times_s=TIMES_S.read(environ),
            grace_s=GRACE_S.read(environ),
            kill_s=KILL_S.read(environ),
            restart_s=RESTART_S.read(environ),
            leave_s=LEAVE_S.read(environ),
        )
        if limits.heartbeat_s >= limits.heartbeat_timeout_s:
            raise UserError(
                HEARTBEAT_S.name,
                f"{limits.heartbeat_s:g} s between heartbeats is too long: a host is lost after {limits.heartbeat_timeout_s:g} s",
                allowed=f"less than {HEARTBEAT_TIMEOUT_S.name}",
            )
        return limits


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """The settings of the control channel: where the hosts meet, and how they prove that they belong to the job."""

    addresses: Mapping[str, str]  # IP addresses of hosts whose names do not resolve
    port: int
    token: str  # the secret; without one, the training job's ARN, which others in the network may know
    own_token: bool  # the user has set the token

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> ControlSettings:
        """The settings of this environment. Raises UserError."""
        token = TOKEN.read(environ)
        return cls(
            addresses=ADDRESSES.read(environ),
            port=PORT.read(environ),
            token=token or environ.get("TRAINING_JOB_ARN", ""),
            own_token=bool(token),
        )
