"""Which of several kinds of hosts a task's next job gets: the first one for which the account has quota and AWS has room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from algorun_client.aws.api import Target
from algorun_client.common.errors import ApiError
from algorun_client.common.refusals import QUOTA, Refusal, refusal
from algorun_client.connection import Site
from algorun_client.request.model import TaskAddress
from algorun_client.submit.assemble.prepare import Maker
from algorun_client.submit.history import claims, done
from algorun_client.submit.history.claims import Claim
from algorun_client.submit.place import claim, decision
from algorun_client.submit.place.claim import request_id
from algorun_client.submit.place.place import Placed, SubmitFlags, place
from algorun_client.submit.place.telling import Telling
from algorun_client.submit.read.spec import HostChoice

from .history import ended_jobs
from .job_begin import EMPTY, JobBegin
from .job_series import keeping
from .next_hosts import NextHosts
from .next_job import next_choice

NO_ROOM = (Refusal.QUOTA, Refusal.CAPACITY)


def place_in_series(
    make: Maker,
    connection: Site,
    *,
    flags: SubmitFlags,
    telling: Telling,
    last_look: Callable[[], None] | None = None,
) -> Placed:
    """As `place`; takes the next kind of hosts where a quota or AWS has no room for the one before.

    Raises the ApiError of all of them if none has room.
    """
    resources = make.asked.spec.resources
    if not resources.is_series:
        return place(make, connection, flags=flags, telling=telling, last_look=last_look)
    target, address, series = connection.target, make.address, series_id(make)
    refused: list[tuple[HostChoice, ApiError]] = []
    for number in range(start(target, make, flags), len(resources.choices)):
        own = make.asked.spec.of_choice(number).resources
        before = keeping(target, own, JobBegin(series, number, EMPTY, flags.clean_state), address)
        try:
            chosen = make.of_choice(number)
            placed = place(chosen, connection, flags=flags, telling=telling, before=before, last_look=last_look)
        except ApiError as error:
            if refusal(error) not in NO_ROOM or not resources.others:
                raise
            refused.append((resources.choices[number], error))
            if number + 1 < len(resources.choices):
                text = NextHosts.after(make.asked.spec, number, f"{error.code}: {error.message}")
                if telling.first(f"{address.uri}: {text.text}"):
                    text.say(as_json=telling.as_json)
            continue
        return replace(placed, series=series, choices=len(resources.choices))
    raise _all_refused(refused)


def series_id(make: Maker) -> str:
    """The same for all jobs of one request, whichever hosts they get."""
    return request_id(make.of_choice(0)(1))


def start(target: Target, make: Maker, flags: SubmitFlags) -> int:
    """The choice to begin with: that of the job that runs, or made the task done; else the one whose turn it is.

    Raises ApiError or UserError.
    """
    choices, address = range(len(make.asked.spec.resources.choices)), make.address
    if len(choices) == 1:
        return 0
    newest = next(claims.newest_first(target.store, address), None)
    if newest is not None and (flags.lost or _is_open(target, address, newest)):
        for number in choices:
            if claim.is_of(newest, make.of_choice(number)(newest.number)):
                return number
    completed = done.look(target, address).completed
    if completed is not None and not flags.runs_anyway:
        for number in choices:
            if not done.changes(target.store, address, completed, make.of_choice(number)(None).fingerprint):
                return number
    if flags.clean_state:
        return 0
    return next_choice(ended_jobs(target, address, series_id(make)), len(choices))


def _is_open(target: Target, address: TaskAddress, newest: Claim) -> bool:
    """True if the newest job runs, or its client died right before it created it."""
    state = claims.state_of(target, newest)
    if state is not None:
        return not state.ended
    return decision.age(
        target.store, address, newest.number, decision.CREATE
    ) is not None and not decision.is_abandoned(target.store, address, newest.number)


def _all_refused(refused: list[tuple[HostChoice, ApiError]]) -> ApiError:
    """One error for all choices. It counts as one of capacity if any of them was: that may pass sooner."""
    if len(refused) == 1:
        return refused[0][1]
    code = next((error.code for _, error in refused if refusal(error) is Refusal.CAPACITY), QUOTA[0])
    text = "; ".join(f"{choice.text}: {error.code}: {error.message}" for choice, error in refused)
    return ApiError(code, f"no room for any of the {len(refused)} kinds of hosts: {text}", refused[0][1].operation)
