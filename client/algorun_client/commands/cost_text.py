"""What a job costs, in words. Pure."""

from __future__ import annotations

from algorun.common.durations import duration
from algorun_client.aws.job_cost import JobCost
from algorun_client.aws.job_state import JobState
from algorun_report.page.words import money

UNKNOWN = "price unknown"


def counted(number: int, word: str) -> str:
    """`1 host`, `2 hosts`."""
    return f"{number} {word}{'s'[: number != 1]}"


def history(state: JobState) -> str:
    """`interrupted 2 times, started again once`; "" for a job that ran through."""
    found = [
        f"{word} {'once' if number == 1 else f'{number} times'}"
        for word, number in (("interrupted", state.interruptions), ("started again by SageMaker", state.retries))
        if number
    ]
    return ", ".join(found)


def paid(state: JobState, cost: JobCost) -> str:
    """The time that is paid for; "" if it is unknown."""
    if cost.paid_s is None:
        return ""
    kept = f", {duration(state.times.kept_s)} of it kept for the next job" if state.times.kept_s else ""
    saving = "" if state.saving is None else f"; spot instances saved {100 * state.saving:.0f} %"
    return f"billable {duration(cost.paid_s)} on each host{kept}{saving}"


def price(cost: JobCost) -> str:
    """`cost 11.67 (3 hosts at 5.67 an hour)`; "" while nobody knows the time that is paid for."""
    if cost.paid_s is None:
        return ""
    if cost.rate is None or cost.amount is None:
        return f"{UNKNOWN}: the job file's `price` has no {' and no '.join(cost.unpriced)}"
    return f"cost {amount(cost)} ({counted(cost.hosts, 'host')} at {cost.rate:.6g} an hour)"


def amount(cost: JobCost) -> str:
    """`7.01`; `price unknown`, or "" while the job runs."""
    if cost.amount is None:
        return "" if cost.paid_s is None else UNKNOWN
    return money(cost.amount)
