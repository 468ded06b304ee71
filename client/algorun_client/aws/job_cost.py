"""What a job costs: the time that is paid for x hosts x the price that the user's job file names. Pure.

Source: BillableTimeInSeconds and WarmPoolStatus.ResourceRetainedBillableTimeInSeconds in the description of
DescribeTrainingJob. A processing job has no such field; its time from ProcessingStartTime to ProcessingEndTime stands for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from algorun_client.request.model import Kind

from .job_state import WAITS, InstanceGroups, JobState

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCost:
    """`paid_s` counts for each host. None: unknown."""

    hosts: int
    paid_s: float | None
    rate: float | None  # the price of one host for one hour, the mean of all hosts
    unpriced: tuple[str, ...] = ()  # instance types without a price

    @property
    def amount(self) -> float | None:
        """In the currency of the prices; None if the time or the price is unknown."""
        if self.paid_s is None or self.rate is None:
            return None
        return self.paid_s * self.hosts * self.rate / HOUR_S


def cost(state: JobState, prices: Mapping[str, float]) -> JobCost:
    """`prices`: of one host for one hour, by instance type."""
    unpriced = tuple(instance for instance, _ in state.hosts.groups if instance not in prices)
    return JobCost(hosts=state.hosts.count, paid_s=paid_s(state), rate=rate(state.hosts, prices), unpriced=unpriced)


def most(state: JobState, prices: Mapping[str, float], *, run_s: float, kept_s: float) -> float | None:
    """The most that a job which has ended can have cost, with the hosts that may still be kept for the next one. 0.0 on this machine.

    `run_s`: its --max-run, which stands for a time that nobody knows. `kept_s`: its --keep-alive. None if a price is unknown.
    """
    if not state.hosts.are_paid:
        return 0.0
    known = cost(state, prices)
    if known.rate is None:
        return None
    an_hour = known.rate * known.hosts
    limit = an_hour * (run_s + kept_s) / HOUR_S
    if known.amount is None:
        never_had_hosts = bool(state.phases) and all(each.name in WAITS for each in state.phases)
        return 0.0 if never_had_hosts else limit
    return known.amount if state.times.keeping_has_ended else min(limit, known.amount + an_hour * kept_s / HOUR_S)


def paid_s(state: JobState) -> float | None:
    """The seconds that are paid for on each host. None while the job runs, and for a job on this machine."""
    if not state.hosts.are_paid:
        return None
    if state.kind is Kind.TRAINING or not state.ended:
        billable_s, kept_s = state.times.billable_s, state.times.kept_s
        return None if billable_s is None else billable_s + (kept_s or 0)
    begun = [each for each in state.phases if each.name == "Processing" and each.end]
    return sum((each.end - each.begin).total_seconds() for each in begun if each.end)


def rate(hosts: InstanceGroups, prices: Mapping[str, float]) -> float | None:
    """The mean price of one host for one hour, None if the price of one of the types is unknown."""
    if not hosts.count or any(instance not in prices for instance, _ in hosts.groups):
        return None
    return sum(prices[instance] * count for instance, count in hosts.groups) / hosts.count
