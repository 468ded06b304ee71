"""Which execution of a task a request becomes, and the claim that keeps it from becoming two jobs.

The claim is `jobs/NNNN/request.json`, written before any job is created, and only if it does not exist. A client that
dies afterwards leaves a claim without a job: the same request goes on with it, a different one takes the next number.
A client that is slow leaves one too, for a while: so each looks once more before it creates its job, and makes sure
that no client of an earlier claim will (`hold`).
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from algorun.common.errors import UserError
from algorun_client.aws.api import ObjectStore, Target
from algorun_client.aws.job_state import REQUEST_ID, JobState
from algorun_client.common.errors import Exists, NotFound
from algorun_client.request.codec import to_json, without_secrets
from algorun_client.request.model import Request, TaskAddress
from algorun_client.submit.history.claims import Claim, claim_uri, newest_first, newest_job, numbers, state_of

from . import decision

NUMBER = re.compile(r"\d{4,}")
MOST_TRIES = 100  # clients that claim executions of one task at the same moment
PROMPT_S = 300.0  # from the decision to the call that creates the job
MOST_NAPS = 3  # of a laptop, each right after its decision


class ClaimStep(Enum):
    """What is left to do for a request."""

    CLAIM = auto()  # everything
    CONTINUE = auto()  # it is claimed already: upload what is missing, create the job
    JOIN = auto()  # its job runs: nothing


@dataclass(frozen=True, slots=True)
class Choice:
    """The execution that a request becomes."""

    request: Request
    step: ClaimStep


def request_id(request: Request) -> str:
    """The hash that is the same for the same request on every machine."""
    environment = request.create.get("Environment")
    return str(environment.get(REQUEST_ID, "")) if isinstance(environment, dict) else ""


class EndedSince(Exception):
    """A job of the task has ended since its executions were looked at: perhaps the task is done by now."""


def choose(target: Target, address: TaskAddress, make: Callable[[int], Request], ended: float = math.inf) -> Choice:
    """Decides, and writes nothing. `make` assembles the request of an execution.

    `ended`: the newest execution that was known to have ended when the caller decided that the task is not done. Raises
    EndedSince if a later one has ended.

    Raises UserError if the task's last job still runs and comes from another request: both would write the same state.
    """
    taken = numbers(target.store, address)
    number = taken[-1] if taken else 0
    last = next(newest_first(target.store, address), None)
    newest, state = newest_job(target, address)
    if newest is not None and state is not None:
        if not state.ended:
            request = make(newest.number)
            if not is_of(newest, request):
                raise _still_runs(address, newest)
            return Choice(request, ClaimStep.JOIN)
        if newest.number > ended:
            raise EndedSince
    if last is not None and last.number == number and (newest is None or newest.number < number):
        if state_of(target, last) is not None:  # another client has created it since
            return choose(target, address, make, ended)
        request = make(number)
        if is_of(last, request) and not decision.is_abandoned(target.store, address, number):
            return Choice(request, ClaimStep.CONTINUE)
    return Choice(make(number + 1), ClaimStep.CLAIM)


def is_of(claim: Claim, request: Request) -> bool:
    """True if the claim was made for this request."""
    return (claim.kind, claim.job, claim.request_id) == (request.kind, request.job, request_id(request))


def take(target: Target, address: TaskAddress, make: Callable[[int], Request], ended: float = math.inf) -> Choice:
    """As `choose`, and claims. After this no other request can become the same execution."""
    for _ in range(MOST_TRIES):
        choice = choose(target, address, make, ended)
        if choice.step is not ClaimStep.CLAIM:
            return choice
        # Whoever may read the bucket need not be one who may describe the job.
        shown = {**to_json(choice.request), "create": without_secrets(choice.request.create)}
        content = json.dumps(shown, indent=1).encode()
        try:
            target.store.put(claim_uri(address, choice.request.number), content, if_absent=True)
        except NotFound as error:
            raise UserError(
                "--bucket",
                f"{address.bucket}: {error.message or 'there is no such bucket'}",
                fix=f"create it with --create-bucket (or `aws s3 mb s3://{address.bucket}`), or name another --bucket or --region",
            ) from None
        except Exists:  # another client was faster, or the answer to our own call was lost: look again
            continue
        return choice
    raise UserError(
        f"task {address.project}/{address.task}",
        f"other clients took {MOST_TRIES} executions while this one looked for a free number",
        fix="submit again",
    )


def hold(target: Target, address: TaskAddress, request: Request) -> str:
    """To be called right before the job is created: raises UserError if another client has come in between.

    Of two clients with different requests the one with the lower number gives way if it has not decided to create its job
    yet. Afterwards no client of a lower number can create one, and a higher one learns of this one.

    Returns this client's word, for `decision.withdraw`. It holds for as long as `decision.GIVEN_UP` says.
    """
    for _ in range(MOST_NAPS):
        begin = time.time()  # a laptop that sleeps stops the other clocks
        word = _decided(target, address, request)
        if time.time() - begin < PROMPT_S:
            return word
        decision.withdraw(target.store, word)
    raise UserError(
        f"task {address.project}/{address.task}",
        f"S3 took longer than {PROMPT_S / 60:.0f} minutes for the decision, {MOST_NAPS} times",
        fix="submit again when this machine stays awake and its network answers",
    )


def _decided(target: Target, address: TaskAddress, request: Request) -> str:
    store = target.store
    _not_overtaken(store, address, request)
    for claim in newest_first(store, address, below=request.number):
        state = state_of(target, claim) or _ruled_out(target, address, claim)
        if state is not None and not state.ended:
            raise _still_runs(address, claim)
        if state is not None:  # what came before, its own client has looked at
            break
    decided, now = decision.decide(store, address, request.number, decision.CREATE)
    if decided != decision.CREATE:
        raise _overtaken(address, request, max(numbers(store, address)))
    if now:
        return decision.uri(address, request.number)
    # Another client of this request, or an earlier try, may take its word back, or is not counted any more.
    word = decision.join(store, address, request.number)
    try:
        _not_overtaken(store, address, request)
    except UserError:
        decision.withdraw(store, word)
        raise
    return word


def _not_overtaken(store: ObjectStore, address: TaskAddress, request: Request) -> None:
    taken = numbers(store, address)
    if taken and taken[-1] > request.number:
        raise _overtaken(address, request, taken[-1])


def _overtaken(address: TaskAddress, request: Request, by: int) -> UserError:
    return UserError(
        f"task {address.project}/{address.task}",
        f"another client has begun execution {by} while execution {request.number} was uploaded",
        fix="look at it with `algorun status`; then submit again, or name another --task",
    )


def _ruled_out(target: Target, address: TaskAddress, claim: Claim) -> JobState | None:
    """Makes sure that a claim without a job stays without one. Returns the state of a job that it has by now."""
    decided, _ = decision.decide(target.store, address, claim.number, decision.ABANDONED)
    age = decision.age(target.store, address, claim.number, decided)
    if decided == decision.ABANDONED and age is None:
        return None
    state = state_of(target, claim)
    if state is None and (age is None or age < decision.GIVEN_UP):
        raise UserError(
            f"task {address.project}/{address.task}",
            f"another client creates its job {claim.job} at this moment, or was interrupted there",
            fix="look with `algorun status`, then submit again; if its client is gone, repeat its line, or wait 30 minutes",
        )
    return state


def _still_runs(address: TaskAddress, running: Claim) -> UserError:
    return UserError(
        f"task {address.project}/{address.task}",
        f"its job {running.job} still runs, with another request; two jobs would write the same state",
        fix=f"`algorun stop {running.job}`, wait for its end (`algorun logs -f {running.job}`), or name another --task",
    )
