"""What this host knows of a failure, and what of a program's text others may see. Imports late: most jobs do not fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from algorun.control.failures.failure import Failure
from algorun.job.config import JobConfig

if TYPE_CHECKING:
    from algorun.machine.failure_snapshot import Snapshot


def public(text: str, config: JobConfig) -> str:
    """A text of the user's program, without the job's secrets."""
    if not text:
        return ""
    from algorun.outcome import redaction

    return redaction.text(text, config)


def explained(failure: Failure, config: JobConfig, before: Snapshot | None) -> Failure:
    """The failure with a hint, if one applies, and without the job's secrets. `before` was taken when the ranks had just started,
    None before that."""
    from algorun.machine import failure_snapshot
    from algorun.outcome import hints, redaction

    found = hints.explain(failure, failure_snapshot.look(before, config.paths.written))
    return redaction.failure(found, config)
