"""The last value of a metric, from the lines of a job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from algorun_client.aws.job_state import JobState, JobTimes
from algorun_client.common.errors import ApiError
from algorun_client.follow import metric_values
from algorun_client.follow.log_reader import LogLine
from algorun_client.follow.metric_values import Last, last_values, unsettled_s
from algorun_client.request.model import Kind, TaskAddress
from tests.client.submit.place.memory import World

ADDRESS = TaskAddress(bucket="b", project="p", task="t")
LOSS = r"loss ([^ ]+)"


def line(time_ms: int, text: str, host: str = "algo-1") -> LogLine:
    return LogLine(host, f"{host}-1", time_ms, text)


def state(ago_s: float = 3600.0) -> JobState:
    ended = datetime.now(UTC) - timedelta(seconds=ago_s)
    return JobState(kind=Kind.TRAINING, job="p-t-0001", status="Completed", times=JobTimes(ended=ended))


def test_the_last_one_in_time_counts_whatever_the_order_of_lines():
    chunks = [[line(3, "[0 algo-1] loss 0.25"), line(1, "loss 9")], [], [line(2, "loss 8", "algo-2")]]
    assert last_values(chunks, [LOSS, "step"], pytest.fail) == {LOSS: Last("0.25", 3), "step": Last("")}


def test_an_expression_that_takes_too_long_or_is_none_has_no_value_and_is_named_once():
    lines = [line(1, "aa loss 7"), line(2, "a" * 200 + "b"), line(3, "aa loss 6")]
    said = []
    found = last_values([lines, lines], ["(a+)+$", LOSS, "(", "a{99999999999999999999}"], said.append)
    assert found == {LOSS: Last("6", 3)}
    assert [text.partition(" takes ")[0].partition(" cannot ")[0] for text in said] == [
        "the regular expression '('",
        "the regular expression 'a{99999999999999999999}'",
        "the regular expression '(a+)+$'",
    ]


@pytest.mark.parametrize("text", ["nan", "inf", "1e999", "$(reboot)", "0x1", "1_000", "", "1e", "١"])
def test_what_is_no_number_is_no_value(text):
    assert last_values([[line(1, "loss 7"), line(2, f"loss {text} .")]], [LOSS], pytest.fail)[LOSS].text == "7"


@pytest.mark.parametrize("text", ["1", "-0.5", "1e-05", ".5", "3.", "+2E3"])
def test_numbers_stay_as_they_were_printed(text):
    found = last_values([[line(1, f"loss {text} .")]], [LOSS], pytest.fail)[LOSS]
    assert (found.text, found.number) == (text, float(text))


@pytest.fixture
def world(monkeypatch):
    made = World()
    made.read = 0

    def lines(target, state):
        made.read += 1
        yield [line(5, "loss 0.5")]

    monkeypatch.setattr(metric_values, "job_lines", lines)
    return made


def read(world, metrics, ended=None, grace_s=15.0):
    return metric_values.read_metrics(world.target, ADDRESS, 1, ended or state(), metrics, grace_s)


def test_lines_are_read_once(world):
    for _ in range(2):
        assert read(world, {"loss": LOSS})["loss"].number == 0.5
    assert world.read == 1
    assert read(world, {"loss": LOSS, "step": "step (.)"})["step"].number is None
    assert read(world, {"step": "step (.)"})["step"].text == ""
    assert world.read == 2


def test_who_may_not_write_reads_the_lines_again(world):
    def denied(*_, **__):
        raise ApiError("AccessDenied", "no", "PutObject")

    world.target.store.put = denied
    for _ in range(2):
        assert read(world, {"loss": LOSS})["loss"].text == "0.5"
    assert world.read == 2


def test_while_lines_may_still_come_nothing_is_kept(world):
    assert read(world, {"loss": LOSS}, state(ago_s=1.0))["loss"].text == "0.5"
    assert world.puts == []
    assert 13 < unsettled_s(state(ago_s=1.0), 15.0) < 15


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"format": 1}',
        b'{"format": 1, "values": {"loss ([^ ]+)": ["x", 1]}}',
        b'{"format": 1, "values": {"loss ([^ ]+)": ["1", Infinity]}}',
        b'{"format": 9}',
        b"[" * 100_000,
    ],
    ids=range(7),
)
def test_a_damaged_object_is_made_anew(world, content):
    world.objects[ADDRESS.values(1)] = (content, "")
    assert read(world, {"loss": LOSS})["loss"].text == "0.5"
    assert b'"0.5"' in world.objects[ADDRESS.values(1)][0]
