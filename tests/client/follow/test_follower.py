"""A follower goes on through everything but lost credentials, and hands over each line once."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from algorun_client.aws.api import ReadyTarget
from algorun_client.common.errors import ApiError
from algorun_client.connection import PollTimes
from algorun_client.follow import contact, follower
from algorun_client.follow.follower import follow
from algorun_client.follow.outcome import Ending
from algorun_client.follow.view import PlainView
from algorun_client.request.model import Kind
from tests.client.follow.cloudwatch import CloudWatch


class Clock:
    """Time passes only while somebody sleeps; then things happen in the world."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.events: list[tuple[float, Any]] = []

    def at(self, seconds: float, action: Any) -> None:
        self.events.append((1000.0 + seconds, action))

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        due = sorted((each for each in self.events if each[0] <= self.now), key=lambda each: each[0])
        self.events = [each for each in self.events if each[0] > self.now]
        for _, action in due:
            action()


class Service:
    """DescribeTrainingJob of one job."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {
            "TrainingJobName": "job",
            "TrainingJobStatus": "InProgress",
            "SecondaryStatus": "Training",
        }
        self.refuse: ApiError | None = None

    def describe_training_job(self, *, TrainingJobName: str) -> dict[str, Any]:
        if self.refuse:
            raise self.refuse
        return self.answer

    def end(self, status: str, reason: str = "") -> None:
        self.answer |= {"TrainingJobStatus": status, "FailureReason": reason}


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.service, self.logs = Clock(), Service(), CloudWatch()
        self.out, self.err = io.StringIO(), io.StringIO()
        monkeypatch.setattr(follower, "time", self.clock)
        monkeypatch.setattr(contact, "time", self.clock)

    def run(self) -> Any:
        target = ReadyTarget("aws", self.service, self.logs, None, None)  # type: ignore[arg-type]
        return follow(target, Kind.TRAINING, "job", PlainView(self.out, self.err), PollTimes())


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def test_lines_that_come_after_the_jobs_end_are_shown(world):
    world.logs.put("job/algo-1-1", 1, "first")
    world.clock.at(20, lambda: world.service.end("Failed", "AlgorithmError: exit: rank 3 on algo-2, exit 3, attempt 1"))
    world.clock.at(30, lambda: world.logs.put("job/algo-2-1", 2, "of a host that nobody had seen"))
    world.clock.at(33, lambda: world.logs.put("job/algo-1-1", 0, "late"))
    outcome = world.run()
    assert (outcome.code, outcome.kind) == (3, Ending.FAILED)
    assert world.out.getvalue() == "[algo-1] first\n[algo-2] of a host that nobody had seen\n[algo-1] late\n"


@pytest.mark.parametrize(("ago", "waits"), [(3600, 0), (600, 15)])
def test_a_job_that_ended_long_ago_is_not_waited_for(world, ago, waits):
    """Ten minutes are not long: the clock of this machine may be five minutes wrong."""
    world.logs.put("job/algo-1-1", 1, "first")
    world.service.end("Completed")
    world.service.answer["TrainingEndTime"] = datetime.now(UTC) - timedelta(seconds=ago)
    assert world.run().code == 0
    assert world.out.getvalue() == "[algo-1] first\n"
    assert waits <= world.clock.now - 1000 <= waits + 3


def test_a_minute_of_throttling_is_ridden_out(world):
    throttled = ApiError("ThrottlingException", "Rate exceeded", "DescribeTrainingJob")
    world.logs.put("job/algo-1-1", 1, "first")
    world.service.refuse = throttled
    world.logs.refuse = [ApiError("ThrottlingException", "Rate exceeded", "GetLogEvents")] * 20
    world.clock.at(60, lambda: setattr(world.service, "refuse", None))
    world.clock.at(90, lambda: world.service.end("Completed"))
    assert world.run().code == 0
    assert world.out.getvalue() == "[algo-1] first\n"
    assert world.err.getvalue().count("limits the calls") == 1
    assert "the job runs on" in world.err.getvalue()


@pytest.mark.parametrize("code", ["ExpiredTokenException", "UnauthorizedSSOTokenError", "AccessDeniedException"])
def test_credentials_that_are_no_longer_valid_end_following_not_the_job(world, code):
    world.logs.put("job/algo-1-1", 1, "first")
    world.clock.at(10, lambda: setattr(world.service, "refuse", ApiError(code, "expired", "DescribeTrainingJob")))
    outcome = world.run()
    assert (outcome.code, outcome.kind, outcome.source) == (75, "contact_lost", "client")
    assert world.out.getvalue() == "[algo-1] first\n"


def test_without_an_answer_for_five_minutes_contact_is_lost(world):
    world.service.refuse = ApiError("EndpointConnectionError", "no route", "DescribeTrainingJob")
    outcome = world.run()
    assert outcome.code == 75
    assert 300 < world.clock.now - 1000 < 310
    assert "no answer from AWS (EndpointConnectionError); the job runs on" in world.err.getvalue()


def test_a_short_failure_of_the_network_is_no_end(world):
    world.clock.at(
        10, lambda: setattr(world.service, "refuse", ApiError("ReadTimeoutError", "", "DescribeTrainingJob"))
    )
    world.clock.at(250, lambda: setattr(world.service, "refuse", None))
    world.clock.at(260, lambda: world.service.end("Completed"))
    assert world.run().code == 0
    assert "AWS answers again" in world.err.getvalue()


def test_without_the_right_to_read_lines_the_state_is_followed(world):
    world.logs.refuse = [ApiError("AccessDeniedException", "logs:DescribeLogStreams", "DescribeLogStreams")]
    world.clock.at(20, lambda: world.service.end("Completed"))
    assert world.run().code == 0
    assert "the lines cannot be read" in world.err.getvalue()


def test_lines_that_cloudwatch_refuses_for_good_do_not_hide_the_jobs_end(world):
    world.logs.put("job/algo-1-1", 1, "first")
    refused = [ApiError("InvalidParameterException", "no", "GetLogEvents")] * 10_000
    world.clock.at(20, lambda: setattr(world.logs, "refuse", refused))
    world.clock.at(2000, lambda: world.service.end("Completed"))
    world.clock.at(3000, lambda: pytest.fail("it follows for ever"))
    assert world.run().code == 0
    assert world.err.getvalue().count("the lines cannot be read: no") == 1
    assert world.clock.now < 1000 + 2060


def test_lines_of_the_streams_that_answer_are_shown_while_another_one_is_refused(world):
    world.logs.put("job/algo-1-1", 1, "first")
    world.logs.put("job/algo-2-1", 1, "second")
    get = world.logs.get_log_events

    def of_one(**query: Any) -> Any:
        if query["logStreamName"] == "job/algo-1-1" and world.clock.now < 1100:
            raise ApiError("InternalFailure", "", "GetLogEvents")
        return get(**query)

    world.logs.get_log_events = of_one
    world.clock.at(50, lambda: seen.append(world.out.getvalue()))
    world.clock.at(200, lambda: world.service.end("Completed"))
    seen: list[str] = []
    assert world.run().code == 0
    assert seen == ["[algo-2] second\n"]
    assert world.out.getvalue() == "[algo-2] second\n[algo-1] first\n"


def test_contact_that_is_lost_after_the_jobs_end_does_not_hide_how_it_ended(world):
    world.logs.put("job/algo-1-1", 1, "first")

    def end() -> None:
        world.service.end("Failed", "AlgorithmError: exit: rank 3 on algo-2, exit 3, attempt 1")

    world.clock.at(20, end)
    expired = [ApiError("ExpiredTokenException", "expired", "GetLogEvents")] * 99
    world.clock.at(30, lambda: setattr(world.logs, "refuse", expired))
    outcome = world.run()
    assert (outcome.code, outcome.kind, outcome.source) == (3, Ending.FAILED, "job")
    assert "the job's last lines may be missing: GetLogEvents: ExpiredTokenException" in world.err.getvalue()


def test_ctrl_c_leaves_the_job(world):
    def interrupt() -> None:
        raise KeyboardInterrupt

    world.clock.at(10, interrupt)
    outcome = world.run()
    assert (outcome.code, outcome.kind, outcome.source) == (130, "detached", "client")


@pytest.mark.parametrize("operation", ["GetLogEvents", "the last look"])
def test_lines_that_are_throttled_for_ever_do_not_hide_the_jobs_end(world, operation):
    world.logs.put("job/algo-1-1", 1, "first")
    world.clock.at(20, lambda: world.service.end("Completed"))
    throttled = ApiError("ThrottlingException", "Rate exceeded", "GetLogEvents")
    get = world.logs.get_log_events

    def refuse(**query: Any) -> Any:
        if operation == "GetLogEvents" or "startTime" in query or not query.get("nextToken"):
            raise throttled
        return get(**query)

    world.clock.at(10, lambda: setattr(world.logs, "get_log_events", refuse))
    world.clock.at(3000, lambda: pytest.fail("it follows for ever"))
    assert world.run().code == 0
    assert "the job's last lines may be missing: GetLogEvents: ThrottlingException" in world.err.getvalue()
    assert 300 < world.clock.now - 1000 < 400


def test_credentials_that_end_with_the_job_lose_no_line_that_was_read(world):
    for host in (1, 2):
        world.logs.put(f"job/algo-{host}-1", 1, "first")
    world.service.end("Completed")
    world.service.answer["TrainingEndTime"] = datetime.now(UTC) - timedelta(hours=1)
    describe, get, looks = world.logs.describe_log_streams, world.logs.get_log_events, []

    def describe_log_streams(**query):
        looks.append(query)
        if len(looks) == 2:
            world.logs.put("job/algo-1-1", 2, "last")
        return describe(**query)

    def get_log_events(**query):
        if len(looks) == 2 and query["logStreamName"] == "job/algo-2-1":
            raise ApiError("ExpiredToken", "The security token is expired", "GetLogEvents")
        return get(**query)

    world.logs.describe_log_streams, world.logs.get_log_events = describe_log_streams, get_log_events
    assert world.run().code == 0
    assert world.out.getvalue() == "[algo-1] first\n[algo-2] first\n[algo-1] last\n"
    assert "last lines may be missing" in world.err.getvalue()
