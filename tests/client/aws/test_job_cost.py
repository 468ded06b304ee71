"""What a job costs: seconds x hosts x price, or unknown."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from algorun_client.aws.job_cost import cost, most, rate
from algorun_client.aws.job_state import InstanceGroups, JobPhase, JobState, JobTimes
from algorun_client.request.model import Kind

T0 = datetime(2026, 1, 1, tzinfo=UTC)
PRICES = {"ml.g5.12xlarge": 7.2, "ml.m5.large": 0.9}


def training(billable_s: int | None, kept_s: int | None = None, **more) -> JobState:
    hosts = InstanceGroups((("ml.g5.12xlarge", 3),))
    return JobState(
        kind=Kind.TRAINING,
        job="job",
        status="Completed",
        hosts=hosts,
        times=JobTimes(billable_s=billable_s, kept_s=kept_s),
        **more,
    )


def test_the_cost_is_that_of_all_hosts():
    found = cost(training(1500), PRICES)
    assert (found.hosts, found.paid_s, found.rate) == (3, 1500, 7.2)
    assert found.amount == pytest.approx(9.0)


@pytest.mark.parametrize(("billable_s", "kept_s", "paid_s"), [(1500, 300, 1800), (1500, 0, 1500), (None, 300, None)])
def test_hosts_that_are_kept_for_the_next_job_are_paid_for(billable_s, kept_s, paid_s):
    assert cost(training(billable_s, kept_s), PRICES).paid_s == paid_s


def test_hosts_of_several_types_have_a_mean_price():
    hosts = InstanceGroups((("ml.g5.12xlarge", 2), ("ml.m5.large", 1)))
    assert rate(hosts, PRICES) == pytest.approx((2 * 7.2 + 0.9) / 3)
    assert rate(InstanceGroups((("ml.g5.12xlarge", 2), ("ml.c5.large", 1))), PRICES) is None
    assert rate(InstanceGroups(), PRICES) is None


def test_without_price_or_time_the_cost_is_unknown():
    assert cost(training(1500), {}).amount is None
    assert cost(training(None), PRICES).amount is None


@pytest.mark.parametrize(("status", "seconds"), [("Completed", 60.0), ("InProgress", None)])
def test_a_processing_job_is_paid_for_while_it_processes(status, seconds):
    begin = T0 + timedelta(seconds=90)
    phases = (JobPhase("Starting", T0, begin), JobPhase("Processing", begin, begin + timedelta(seconds=60)))
    state = JobState(
        kind=Kind.PROCESSING, job="job", status=status, phases=phases, hosts=InstanceGroups((("ml.m5.large", 2),))
    )
    assert cost(state, PRICES).paid_s == seconds


@pytest.mark.parametrize(
    ("billable_s", "kept_s", "has_ended", "amount"),
    [
        (1500, None, False, 9.0 + 3.6),  # its hosts may be kept for ten minutes
        (1500, 300, True, 9.0 + 1.8),
        (3600, None, False, 21.6 + 3.6),
        (3900, 600, False, 21.6 + 3.6),  # never more than the limit
        (None, None, False, 21.6 + 3.6),
    ],
)
def test_the_most_that_an_ended_job_can_cost(billable_s, kept_s, has_ended, amount):
    state = training(billable_s)
    state = replace(state, times=JobTimes(billable_s=billable_s, kept_s=kept_s, keeping_has_ended=has_ended))
    assert most(state, PRICES, run_s=3600, kept_s=600) == pytest.approx(amount)
    assert most(state, {}, run_s=3600, kept_s=600) is None
    at_home = replace(state, hosts=InstanceGroups((("", 3),), "simulated hosts"))
    assert most(at_home, {}, run_s=3600, kept_s=600) == 0.0


def test_a_job_that_has_only_waited_for_hosts_took_nothing():
    waits = (JobPhase("Starting", T0, T0), JobPhase("Pending", T0, T0))
    assert most(training(None, phases=waits), PRICES, run_s=3600, kept_s=0) == 0.0
    ran = (*waits, JobPhase("Training", T0, T0))
    assert most(training(None, phases=ran), PRICES, run_s=3600, kept_s=0) == pytest.approx(21.6)
