"""What this machine knows of a failure."""

from __future__ import annotations

from collections.abc import Sequence

from algorun.control.failure import Failure
from algorun.machine import failure_snapshot
from algorun.machine.failure_snapshot import Snapshot
from algorun.outcome import hints


def explained(failure: Failure, before: Snapshot | None, folders: Sequence[str]) -> Failure:
    """The failure with a hint, if a rule applies. `before` was taken when the ranks had just started."""
    return hints.explain(failure, failure_snapshot.look(before, folders))
