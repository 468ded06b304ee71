"""Follows the jobs of a series to the last one's end, and lets the next one be created where there is to be one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from algorun.common.errors import UserError
from algorun_client.aws import job_cost
from algorun_client.aws.api import Target
from algorun_client.aws.job_state import JobState
from algorun_client.common import json_lines
from algorun_client.common.errors import ApiError, Interrupted
from algorun_client.connection import Site
from algorun_client.follow.follower import follow
from algorun_client.follow.following import open_view
from algorun_client.follow.outcome import Ending, Outcome
from algorun_client.follow.view import View
from algorun_client.request.model import Request, TaskAddress
from algorun_client.submit.assemble import rules
from algorun_client.submit.place.place import Placed
from algorun_client.submit.read.spec import ResourceSpec, TaskSpec

from . import history, job_begin
from .job_begin import EMPTY, JobBegin
from .next_hosts import NextHosts
from .next_job import Decision, EndedJob, decide, sum_of, summed, told


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesRules:
    """How the jobs of a task follow each other."""

    spec: TaskSpec
    address: TaskAddress
    as_json: bool
    again: str  # the line that comes back to the series
    # Asked after a job that found no free instances on the last of its hosts: the task in the next region, if it may begin there.
    elsewhere: Callable[[], TaskSpec | None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOfSeries:
    """A job, and where and by which rules it is followed."""

    connection: Site
    how: SeriesRules
    placed: Placed


def ends_of(target: Target, placed: Placed, how: SeriesRules) -> tuple[list[EndedJob], Decision]:
    """The ended jobs of a series, the newest first, and what follows the newest. Raises ApiError or UserError."""
    ended = history.ended_jobs(target, how.address, placed.series, newest=placed.number)
    until_done = how.spec.resources.until_done
    is_last = bool(ended) and ended[0].lacked_hosts and ended[0].choice + 1 >= placed.choices
    has_next = is_last and how.elsewhere() is not None
    return ended, decide(ended, until_done=until_done, choices=placed.choices, has_next_region=has_next)


def text_of_next(how: SeriesRules, ended: list[EndedJob], decision: Decision) -> str:
    """One line before the next job: how the last one ended, and on which hosts the next one is to run if they are others."""
    newest = ended[0]
    if decision.other_hosts:
        return NextHosts.after(how.spec, newest.choice, newest.outcome.text, how.elsewhere()).text
    return told(newest, decision.text, sum_of(ended, how.spec.resources.prices))


def keeping(
    target: Target, resources: ResourceSpec, placed_as: JobBegin, address: TaskAddress
) -> Callable[[Request], None]:
    """What is done before a job is created: the most that it may cost is counted, and what it finds is kept.

    `placed_as`: without a state if it is to be listed.
    """

    def before(request: Request) -> None:
        if not placed_as.is_first:
            past = history.ended_jobs(target, address, placed_as.series)
            check_cost(resources, past)
        state = EMPTY if placed_as.is_first else job_begin.state_now(target.store, address)
        begin = JobBegin(placed_as.series, placed_as.choice, state, placed_as.is_first)
        job_begin.write(target.store, address, request.number, begin)

    return before


def check_cost(resources: ResourceSpec, past: Sequence[EndedJob]) -> None:
    """Raises UserError if the next job could bring all jobs of a series above --max-cost.

    `past`: those that have ended. One whose time nobody knows counts with its most; those of this machine cost nothing.
    """
    limit, most = resources.max_cost, rules.most_cost(resources)
    if not resources.until_done or limit is None or most is None:
        return
    paid = [each.state for each in past if each.state.hosts.are_paid and not each.lacked_hosts]
    if not paid:
        return
    spent, unsure = 0.0, 0
    for state in paid:
        amount = job_cost.most(state, resources.prices, run_s=resources.max_run_s, kept_s=resources.keep_alive_s or 0)
        if amount is None:
            raise _without_price(state, resources)
        spent += amount
        unsure += amount != job_cost.cost(state, resources.prices).amount
    if spent + most > limit:
        so_far = (
            f"cost up to {spent:.2f} ({unsure} of them can still cost more, or nobody knows their time)"
            if unsure
            else f"cost {spent:.2f}"
        )
        raise UserError(
            "--max-cost",
            f"the jobs so far {so_far}, and the next one may cost {most:.2f}",
            allowed=f"up to {limit:.2f} for all jobs of --until-done",
            fix="a shorter --max-run, fewer hosts, or a higher --max-cost; the state stays, and the next job goes on with it",
        )


def _without_price(state: JobState, resources: ResourceSpec) -> UserError:
    unpriced = job_cost.cost(state, resources.prices).unpriced
    hosts = " and of ".join(unpriced) or "its hosts"
    return UserError(
        "--max-cost",
        f"what job {state.job} cost is unknown: the price of {hosts} is missing",
        fix=f'price = {{ "{unpriced[0] if unpriced else "TYPE"}" = AMOUNT }} at the top of the job file: of one host for one hour',
    )


class JobSeries:
    """The jobs of one task. `place_next` makes sure that the next one exists."""

    def __init__(self, first: JobOfSeries, place_next: Callable[[], JobOfSeries]) -> None:
        self._first, self._place_next = first, place_next
        self._connection, self._how = first.connection, first.how

    def follow(self) -> int:
        """Returns the exit code of the last job. Raises UserError, ApiError or Interrupted where the next one cannot be created."""
        job = self._first
        while True:
            self._connection, self._how = job.connection, job.how
            code, goes_on = self._one(job.placed)
            if not goes_on:
                return code
            job = self._next()

    def _next(self) -> JobOfSeries:
        try:
            return self._place_next()
        except KeyboardInterrupt as stop:
            text = f"{stop}; " if isinstance(stop, Interrupted) else ""
            hanging = isinstance(stop, Interrupted) and stop.hanging
            raise Interrupted(f"{text}come back with: {self._how.again}", hanging=hanging) from None
        except (ApiError, UserError):
            self._say(f"come back with: {self._how.again}")
            raise

    def _one(self, placed: Placed) -> tuple[int, bool]:
        """Follows one job. Returns its exit code, and True if another one is to follow."""
        connection, as_json = self._connection, self._how.as_json
        view = open_view(as_json, connection.pace.grace_s, connection.all_lines(placed.job))
        try:
            outcome = follow(connection.following(), placed.kind, placed.job, view, connection.pace)
            if outcome.kind in (Ending.DETACHED, Ending.CONTACT_LOST):
                view.end(placed.job, outcome, self._how.again)
                return outcome.code, False
            try:
                ended, decision = ends_of(connection.target, placed, self._how)
            except (ApiError, UserError) as error:  # how the job ended is known
                view.note(f"what the job has done cannot be looked up: {error}; come back with: {self._how.again}")
                view.end(placed.job, outcome, self._how.again)
                return outcome.code, False
            self._show(view, placed, outcome, ended, decision)
        finally:
            view.close()
        return outcome.code, decision.goes_on

    def _show(self, view: View, placed: Placed, outcome: Outcome, ended: list[EndedJob], decision: Decision) -> None:
        total, newest = sum_of(ended, self._how.spec.resources.prices), ended[0]
        if decision.goes_on:
            if not self._how.as_json:  # there the job's last state has its outcome, and `end` ends the command
                view.end(placed.job, outcome, "")
            if decision.other_hosts:
                following = NextHosts.after(self._how.spec, newest.choice, outcome.text, self._how.elsewhere())
                following.say(as_json=self._how.as_json)
            else:
                self._say(told(newest, decision.text, total), event="next_job", job=placed.job, cost=total.amount)
            return
        if decision.text:
            view.note(decision.text)
        if total.jobs > 1:
            if self._how.as_json:
                json_lines.write("jobs", jobs=total.jobs, billable_s=total.paid_s, cost=total.amount)
            else:
                view.note(summed(total))
        view.end(placed.job, outcome, "")

    def _say(self, text: str, event: str = "note", **fields: object) -> None:
        if self._how.as_json:
            json_lines.write(event, text=text, **fields)
        else:
            print(f"algorun: {text}", file=sys.stderr, flush=True)
