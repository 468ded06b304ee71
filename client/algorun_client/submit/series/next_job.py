"""Whether another job follows one that has ended: by how it ended, and by its progress. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from algorun.common.durations import duration
from algorun_client.aws.job_cost import cost
from algorun_client.aws.job_state import INTERRUPTED, JobState
from algorun_client.follow.outcome import Ending, Outcome, judge
from algorun_report.page.words import money

from .job_begin import StateFound

MOST_BARREN = 2  # jobs in a row that leave the state as they found it: the next one would do the same
# The launcher's kinds of failures that are the hosts' and not the program's. Kind and code: a program may end with 66 too.
OF_HOSTS = re.compile(r"(?:AlgorithmError: )?(?:(?:lost|node): [^\n]*?, exit 66|gate: [^\n]*?, exit 65)(?=[,:\s]|$)")
OF_SAGEMAKER = "InternalServerError"
OUT_OF_RUN = "MaxRuntimeExceeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """One job of a series. `found`: the state before it; None if nobody knows. `left`: the state after it."""

    number: int
    state: JobState
    choice: int
    found: StateFound | None
    left: StateFound

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        return judge(self.state)

    @property
    def is_barren(self) -> bool:
        """True if it has left the state as it found it."""
        return self.found is not None and not self.left.is_progress_since(self.found)

    @property
    def lacked_hosts(self) -> bool:
        """True if it found no free instances."""
        return self.outcome.kind is Ending.CAPACITY


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether another job follows, and why or why not; "" where the job's own last line says all."""

    goes_on: bool
    text: str = ""
    other_hosts: bool = False  # it gets the next kind of hosts


@dataclass(frozen=True, slots=True)
class SeriesSum:
    """What all jobs of a series took. `paid_s` is the time of one host; None: unknown."""

    jobs: int
    paid_s: float | None
    amount: float | None


def end_of_hosts(state: JobState) -> str:
    """Why a job ended although its program could go on, in words; "" for an end that another job would not mend."""
    outcome = judge(state)
    if outcome.kind is Ending.OUT_OF_TIME:
        return "ran out of time"
    if outcome.kind is Ending.STOPPED and state.detail == INTERRUPTED:
        return "lost its spot instances"
    if outcome.kind is Ending.CAPACITY:
        return "found no free instances"
    if outcome.kind is not Ending.FAILED:
        return ""
    if state.failure.startswith(OF_SAGEMAKER):
        return "was ended by an error of SageMaker's"
    if any(OF_HOSTS.match(line) for line in state.failure.splitlines()):
        return "lost a host" if outcome.code == 66 else "missed a host"
    return ""


def decide(ended: Sequence[EndedJob], *, until_done: bool, choices: int = 1, has_next_region: bool = False) -> Decision:
    """What follows the newest job. `ended`: the newest first. `choices`: how many kinds of hosts the task may have.

    `has_next_region`: after the last of them it may begin in another region.
    """
    newest = ended[0]
    why = end_of_hosts(newest.state)
    if newest.lacked_hosts and (newest.choice + 1 < choices or has_next_region):
        return Decision(True, why, other_hosts=True)
    if not why or not until_done:
        return Decision(False)
    if newest.state.detail == OUT_OF_RUN and not newest.left.files:
        text = (
            "the job ran out of time and has left nothing in its checkpoint folder: the next one would begin from zero"
        )
        return Decision(
            False, f"--until-done ends: {text}; fix: write checkpoints below /opt/ml/checkpoints and resume"
        )
    if barren(ended, choices) >= MOST_BARREN:
        text = f"{MOST_BARREN} jobs in a row have left the state as they found it ({newest.left.text})"
        return Decision(False, f"--until-done ends: {text}, so another one would too; the same line tries once more")
    return Decision(True, why)


def told(newest: EndedJob, why: str, total: SeriesSum) -> str:
    """The line before the next job: how the last one ended, what it has done, and the money so far."""
    parts = [f"job {newest.state.job} {why} (exit {newest.outcome.code})"]
    if newest.is_barren and not newest.lacked_hosts:
        parts.append(f"it left the state as it found it ({newest.left.text})")
    elif not newest.is_barren:
        before = f" (it found {newest.found.text})" if newest.found is not None else ""
        parts.append(f"it left {newest.left.text}{before}")
    if total.amount is not None and total.jobs:
        parts.append(f"cost so far {money(total.amount)}")
    return "; ".join(parts)


def summed(total: SeriesSum) -> str:
    """The sum of all jobs in words."""
    parts = [f"{total.jobs} jobs"]
    if total.paid_s is not None:
        parts.append(f"billable {duration(total.paid_s)} on each host")
    if total.amount is not None:
        parts.append(f"cost {money(total.amount)}")
    return ", ".join(parts)


def barren(ended: Sequence[EndedJob], choices: int = 1) -> int:
    """How many jobs in a row, up to the newest one, have left the state as they found it. `ended`: the newest first.

    A job that found no free instances does not count while other hosts are left to try.
    """
    count = 0
    for each in ended:
        if each.lacked_hosts and each.choice + 1 < choices:
            continue
        if not each.is_barren:
            break
        count += 1
    return count


def next_choice(ended: Sequence[EndedJob], choices: int) -> int:
    """The hosts for the next job: those after the ones that were not free, else the first."""
    if ended and ended[0].lacked_hosts and ended[0].choice + 1 < choices:
        return ended[0].choice + 1
    return 0


def sum_of(ended: Sequence[EndedJob], prices: Mapping[str, float]) -> SeriesSum:
    """Billable time and cost of all jobs. A job that never had hosts took none."""
    costs = [cost(each.state, prices) for each in ended if not each.lacked_hosts]
    paid = [each.paid_s for each in costs]
    amounts = [each.amount for each in costs]
    return SeriesSum(
        jobs=len(ended),
        paid_s=None if None in paid else sum(each or 0.0 for each in paid),
        amount=None if None in amounts else sum(each or 0.0 for each in amounts),
    )
