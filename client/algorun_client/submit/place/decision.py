"""Whether an execution may still create its job: one object for each execution, written once, decides between clients.

`jobs/NNNN/decision` says `create` if the execution's own client wrote it, right before it creates the job, and
`abandoned` if the client of a later execution did. S3 takes only the first of two conditional writes, so of two clients
that look at the same moment one learns that it may not.

A second client of the same request finds `create` there, and writes a word of its own: `jobs/NNNN/decision-ID`. Each client
takes back its own word alone. A client of a later execution looks for all of them after its claim, and the second client
looks for later claims after its word: so one of the two sees the other.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

from algorun.common.errors import UserError
from algorun_client.aws.api import ObjectStore
from algorun_client.common.errors import Exists, NotFound
from algorun_client.request.model import TaskAddress

CREATE, ABANDONED = b"create", b"abandoned"
# After this time a client that decided creates no job any more, also if its laptop has slept: it begins the call within
# PROMPT_S (claim.py), makes the last try within LAST_TRY_S (aws/aws_session.py), and AWS takes no signature older than five
# minutes. Five more are left for clocks that differ.
GIVEN_UP = timedelta(minutes=30)
MOST_TRIES = 20  # S3 may refuse both of two writes at the same moment


def uri(address: TaskAddress, number: int) -> str:
    """The address of a decision."""
    return f"{address.execution(number)}/decision"


def decide(store: ObjectStore, address: TaskAddress, number: int, what: bytes) -> tuple[bytes, bool]:
    """What is decided, and True if that was decided now."""
    place = uri(address, number)
    for _ in range(MOST_TRIES):
        try:
            store.put(place, what, if_absent=True)
            return what, True
        except Exists:
            pass
        try:
            return store.get(place), False
        except NotFound:
            continue
    raise UserError(place, "other clients write it all the time", fix="submit again")


def is_abandoned(store: ObjectStore, address: TaskAddress, number: int) -> bool:
    """True if this execution will never have a job."""
    try:
        return store.get(uri(address, number)) == ABANDONED
    except NotFound:
        return False


def join(store: ObjectStore, address: TaskAddress, number: int) -> str:
    """Writes a word beside `create`, which another client or an earlier try has decided. Returns its address."""
    word = f"{uri(address, number)}-{uuid.uuid4().hex}"
    store.put(word, CREATE)
    return word


def withdraw(store: ObjectStore, word: str) -> None:
    """Takes a client's own word back, the decision or the one beside it: it will not create the job."""
    store.delete(word)


def age(store: ObjectStore, address: TaskAddress, number: int, decided: bytes) -> timedelta | None:
    """The time since the last client has given its word to create the job. None if there is none."""
    place = uri(address, number)
    times = [each.modified for each in store.list(place) if decided == CREATE or each.uri != place]
    return datetime.now(UTC) - max(times) if times else None
