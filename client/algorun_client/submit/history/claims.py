"""The claims of a task's executions, `jobs/NNNN/request.json`, and the states of their jobs. Reads only."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from algorun.common.codec import loads
from algorun.common.errors import UserError
from algorun.common.json_values import rows, table, text
from algorun_client.aws.api import ObjectStore, Target
from algorun_client.aws.job_state import REQUEST_ID, JobState, describe
from algorun_client.common.errors import NotFound
from algorun_client.request.model import Kind, TaskAddress
from algorun_client.request.names import in_job_name

NUMBER = re.compile(r"\d{4,}")


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed execution, as its request.json tells."""

    number: int
    kind: Kind
    job: str
    request_id: str
    mirrors: tuple[str, ...] = ()  # where its local inputs lie


def numbers(store: ObjectStore, address: TaskAddress) -> list[int]:
    """The numbers of all executions of a task, in order. None, if there is not even the bucket."""
    try:
        return sorted(int(each) for each in store.folders(f"{address.uri}/jobs/") if NUMBER.fullmatch(each))
    except NotFound:
        return []


def newest_first(store: ObjectStore, address: TaskAddress, below: float = math.inf) -> Iterator[Claim]:
    """The claims of a task with numbers less than `below`. Of an execution whose claim was removed nothing is known."""
    for number in reversed(numbers(store, address)):
        if number < below:
            with contextlib.suppress(NotFound):
                yield read_claim(store, address, number)


def read_claim(store: ObjectStore, address: TaskAddress, number: int) -> Claim:
    """A claim. Raises NotFound, or UserError if it cannot be read."""
    uri = claim_uri(address, number)
    try:
        value = table(loads(store.get(uri)))
        environment = table(table(value["create"]).get("Environment") or {})
        mirrors = tuple(text(each) for each in rows(value.get("mirrors") or []))
        job, sent = text(value["job"]), text(environment.get(REQUEST_ID, ""))
        return Claim(number, Kind(text(value["kind"])), job, sent, mirrors)
    except (ValueError, KeyError) as error:
        jobs = in_job_name(f"{address.project}-{address.task}")
        raise UserError(
            uri,
            f"not a request of algorun: {error!r}",
            fix=f"look with `algorun ls {jobs}` that no job of the task runs, and remove the object",
        ) from None


def claim_uri(address: TaskAddress, number: int) -> str:
    """The address of a claim."""
    return f"{address.execution(number)}/request.json"


def newest_job(target: Target, address: TaskAddress) -> tuple[Claim, JobState] | tuple[None, None]:
    """The newest job of a task. Claims after its own have none: their clients died, or are still sending."""
    for claim in newest_first(target.store, address):
        state = state_of(target, claim)
        if state is not None:
            return claim, state
    return None, None


def state_of(target: Target, claim: Claim) -> JobState | None:
    """The state of a claim's job; None if there is none."""
    try:
        return describe(target.sagemaker, claim.kind, claim.job)
    except NotFound:
        return None
