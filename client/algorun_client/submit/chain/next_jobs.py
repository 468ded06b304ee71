"""Which jobs of a chain may start now, and which never will. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from .chain import Chain, Node


class Status(StrEnum):
    """Where a job of a chain is."""

    WAITING = "waiting"  # for others, or for room
    QUEUED = "queued"  # the account's quota allows no more jobs
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"  # it ended in another way, or could not be created
    STOPPED_EARLY = "stopped early"  # a point of a tuning that lagged behind
    LEFT_OUT = "left out"  # something that it reads has failed


OPEN = (Status.WAITING, Status.QUEUED)


def startable(chain: Chain, status: Mapping[str, Status]) -> list[Node]:
    """The jobs that may start, in order: all that they read has completed, and their sweep or tuning has room."""
    found: list[Node] = []
    room = {
        table: most - sum(status[node.spec.task] is Status.RUNNING for node in chain.jobs_of(table))
        for table, most in chain.parallel.items()
    }
    for node in chain.nodes:
        if status[node.spec.task] not in OPEN or not all(_completed(chain, status, table) for table in node.after):
            continue
        if node.tune is not None or room.get(node.table, 1) > 0:
            found.append(node)
            if node.table in room and node.tune is None:
                room[node.table] -= 1
    return found


def hopeless(chain: Chain, status: Mapping[str, Status]) -> dict[str, str]:
    """The jobs that can never start, each with the task that is the cause. The chain is in order, so one look is enough."""
    waited_for = [node for node in chain.nodes if not node.chosen]
    bad = {node.table: node.spec.task for node in waited_for if status[node.spec.task] is Status.FAILED}
    bad |= {node.table: node.spec.task for node in waited_for if status[node.spec.task] is Status.LEFT_OUT}
    found: dict[str, str] = {}
    for node in chain.nodes:
        cause = next((bad[table] for table in node.after if table in bad), "")
        if node.chosen:  # a tuning that has failed starts no further point
            cause = bad.get(node.table, "")
        if cause and status[node.spec.task] in OPEN:
            found[node.spec.task] = cause
            if not node.chosen:
                bad.setdefault(node.table, node.spec.task)
    return found


def has_ended(status: Mapping[str, Status]) -> bool:
    """True if nothing runs or waits."""
    return not any(each in (*OPEN, Status.RUNNING) for each in status.values())


def _completed(chain: Chain, status: Mapping[str, Status], table: str) -> bool:
    return all(status[node.spec.task] is Status.COMPLETED for node in chain.of_table(table))
