"""Figures of hosts: what CloudWatch is asked, and how its answers are read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from algorun_client.aws.host_figures import HostMetric, read_figures
from algorun_client.aws.job_state import InstanceGroups, JobState, JobTimes
from algorun_client.common.instance_units import cores, gpus
from algorun_client.request.model import Kind

T0 = datetime(2026, 11, 1, 12, 0, 42, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def state(hosts: int = 2, kind: Kind = Kind.TRAINING, **times: Any) -> JobState:
    times = {"created": T0, "ended": T0 + 10 * MINUTE, **times}
    return JobState(
        kind=kind,
        job="job",
        status="Completed",
        hosts=InstanceGroups((("ml.m5.large", hosts),)),
        times=JobTimes(**times),
    )


class CloudWatch:
    """Answers with what a test gives: {metric of a host: pages of points}. `queries` keeps what was asked."""

    def __init__(self, *pages: dict[tuple[str, str], list[tuple[int, float]]]) -> None:
        self.pages, self.queries = pages or ({},), []

    def get_metric_data(self, **query: Any) -> dict[str, Any]:
        self.queries.append({**query})
        number = int(query.get("NextToken", "0"))
        results = []
        for each in query["MetricDataQueries"]:
            metric = each["MetricStat"]["Metric"]
            (dimension,) = metric["Dimensions"]
            points = self.pages[number].get((metric["MetricName"], dimension["Value"]), [])
            at = [T0.replace(second=0) + minute * MINUTE for minute, _ in points]
            results.append({"Id": each["Id"], "Timestamps": at, "Values": [value for _, value in points]})
        more = {"NextToken": str(number + 1)} if number + 1 < len(self.pages) else {}
        return {"MetricDataResults": results, **more}


def test_points_of_several_pages_come_in_their_order_and_empty_metrics_are_left_out():
    api = CloudWatch(
        {("CPUUtilization", "job/algo-1"): [(2, 180.0), (1, 170.0)], ("DiskUtilization", "job/algo-2"): [(1, 3.5)]},
        {("CPUUtilization", "job/algo-1"): [(3, 190.0), (4, float("nan"))]},
    )
    period_s, found = read_figures(api, state(), T0 + 60 * MINUTE)
    begin = T0.replace(second=0).timestamp()
    assert period_s == 60
    assert found == [
        HostMetric("CPUUtilization", "algo-1", (begin + 60, begin + 120, begin + 180), (170.0, 180.0, 190.0)),
        HostMetric("DiskUtilization", "algo-2", (begin + 60,), (3.5,)),
    ]


def test_the_query_is_that_of_sagemakers_metrics():
    api = CloudWatch()
    read_figures(api, state(hosts=1), T0 + 60 * MINUTE)
    (query,) = api.queries
    assert query["MetricDataQueries"][0] == {
        "Id": "m0",
        "MetricStat": {
            "Metric": {
                "Namespace": "/aws/sagemaker/TrainingJobs",
                "MetricName": "CPUUtilization",
                "Dimensions": [{"Name": "Host", "Value": "job/algo-1"}],
            },
            "Period": 60,
            "Stat": "Average",
        },
    }
    assert len(query["MetricDataQueries"]) == 5
    assert (query["StartTime"], query["EndTime"]) == (T0.replace(second=0), T0.replace(second=0) + 13 * MINUTE)


@pytest.mark.parametrize(("days", "period_s"), [(0, 60), (14, 60), (15, 300), (62, 300), (63, 3600), (400, 3600)])
def test_the_period_is_the_shortest_that_cloudwatch_still_has(days, period_s):
    api = CloudWatch()
    assert read_figures(api, state(), T0 + timedelta(days=days, minutes=30))[0] == period_s
    assert api.queries[0]["MetricDataQueries"][0]["MetricStat"]["Period"] == period_s
    assert api.queries[0]["StartTime"].timestamp() % period_s == 0
    assert api.queries[0]["StartTime"] < api.queries[0]["EndTime"]


def test_many_hosts_take_several_calls():
    api = CloudWatch({("CPUUtilization", "job/algo-101"): [(1, 5.0)], ("DiskUtilization", "job/algo-150"): [(1, 6.0)]})
    _, found = read_figures(api, state(hosts=150), T0 + 60 * MINUTE)
    assert [len(query["MetricDataQueries"]) for query in api.queries] == [500, 250]
    assert [(each.metric, each.host) for each in found] == [
        ("CPUUtilization", "algo-101"),
        ("DiskUtilization", "algo-150"),
    ]


@pytest.mark.parametrize("name", ["job/algo-1", "job/1"])
def test_hosts_of_processing_jobs_have_either_name(name):
    api = CloudWatch({("MemoryUtilization", name): [(1, 40.0)]})
    _, found = read_figures(api, state(hosts=1, kind=Kind.PROCESSING), T0 + 60 * MINUTE)
    assert [(each.metric, each.host, each.values) for each in found] == [("MemoryUtilization", "algo-1", (40.0,))]
    metric = api.queries[0]["MetricDataQueries"][0]["MetricStat"]["Metric"]
    assert metric["Namespace"] == "/aws/sagemaker/ProcessingJobs"


def test_a_job_that_runs_is_asked_for_until_now_and_one_without_times_not_at_all():
    api = CloudWatch()
    read_figures(api, state(ended=None), T0 + 3 * MINUTE)
    assert api.queries[0]["EndTime"] == T0.replace(second=0) + 4 * MINUTE
    assert read_figures(CloudWatch(), state(created=None), T0) == (60, [])


@pytest.mark.parametrize(
    ("instance", "count", "devices"),
    [
        ("ml.m5.large", 2, 0),
        ("ml.t3.medium", 2, 0),
        ("ml.c5.9xlarge", 36, 0),
        ("ml.c4.8xlarge", 36, 0),
        ("ml.c5n.18xlarge", 72, 0),
        ("ml.m5.4xlarge", 16, 0),
        ("ml.r5d.24xlarge", 96, 0),
        ("ml.g4dn.xlarge", 4, 1),
        ("ml.g4dn.12xlarge", 48, 4),
        ("ml.g5.12xlarge", 48, 4),
        ("ml.g5.16xlarge", 64, 1),
        ("ml.g6e.48xlarge", 192, 8),
        ("ml.p3.2xlarge", 8, 1),
        ("ml.p3.16xlarge", 64, 8),
        ("ml.p4d.24xlarge", 96, 8),
        ("ml.p5.4xlarge", 16, 1),
        ("ml.p5.48xlarge", 192, 8),
        ("ml.p6-b200.48xlarge", 192, 8),
        ("ml.trn1.32xlarge", 128, 0),
        ("ml.z9.4xlarge", 16, None),
        ("ml.geospatial.jobs", None, None),
        ("", None, None),
    ],
)
def test_cores_and_gpus_of_instance_types(instance, count, devices):
    assert (cores(instance), gpus(instance)) == (count, devices)
