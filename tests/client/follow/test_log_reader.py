"""Every line of every stream, once."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from algorun_client.common.errors import ApiError
from algorun_client.follow import log_reader
from algorun_client.follow.log_reader import LogLine, LogReader
from algorun_client.request.model import Kind
from tests.client.follow.cloudwatch import CloudWatch


def texts(lines: list[LogLine]) -> list[tuple[str, str]]:
    return sorted((line.stream, line.text) for line in lines)


def all_of(reader: LogReader) -> list[LogLine]:
    reader.discover()
    lines = reader.poll()
    while not reader.at_end:
        lines += reader.poll()
    return lines


def test_numbered_lines_of_60_streams_that_come_late_and_out_of_order_arrive_once_each():
    """Also from a host that restarts (a second stream), and while calls are refused."""
    chance = random.Random(7)
    logs = CloudWatch(page=40)
    streams = [f"algo-{host}-{1000 + host}" for host in range(1, 60)] + ["algo-7-2000"]
    waiting = [(stream, 1_000_000 + n * 10, f"{stream} line {n}") for n in range(120) for stream in streams]
    waiting += [("algo-3-1003", 1_000_050, "twice"), ("algo-3-1003", 1_000_050, "twice")]
    expected = sorted((stream, text) for stream, _, text in waiting)
    waiting.sort(key=lambda each: each[1] + chance.choice([0, 0, 0, 0, 50, 400, 900]))  # some are late by 90 lines
    reader = LogReader(logs, Kind.TRAINING, "job")
    found: list[LogLine] = []
    while waiting:
        for _ in range(chance.randrange(200, 1500)):
            if waiting:
                stream, time, text = waiting.pop(0)
                logs.put(f"job/{stream}", time, text)
        logs.put("job-2/algo-1-1", 1, "of a neighbour")
        if chance.random() < 0.4:
            logs.refuse = [ApiError("ThrottlingException", "Rate exceeded", "GetLogEvents")] * chance.randrange(1, 4)
        for call in (reader.discover, reader.poll, lambda: reader.sweep(all_streams=False)):
            try:
                found += call() or []
            except ApiError:
                continue
    logs.refuse = []
    found += all_of(reader) + reader.sweep(all_streams=True)
    assert texts(found) == expected
    assert {line.host for line in found} == {f"algo-{n}" for n in range(1, 60)}


def test_lines_of_one_round_come_in_the_order_of_their_times():
    logs = CloudWatch()
    for n in range(6):
        logs.put(f"job/algo-{1 + n % 2}-1", 100 - n, str(n))
    reader = LogReader(logs, Kind.TRAINING, "job")
    reader.discover()
    assert [line.text for line in reader.poll()] == ["5", "4", "3", "2", "1", "0"]


def test_the_agent_of_remote_debugging_is_no_host():
    """Source of its streams' names: "Access a training container through AWS Systems Manager for remote debugging"."""
    logs = CloudWatch()
    logs.put("job/algo-1-1", 1, "a line")
    logs.put("job/algo-1-1/ssm", 2, "ERROR no permission")
    assert texts(all_of(LogReader(logs, Kind.TRAINING, "job"))) == [("algo-1-1", "a line")]


def test_lines_that_were_read_before_a_call_was_refused_are_handed_out_later():
    logs = CloudWatch(page=2)
    for n in range(4):
        logs.put("job/algo-1-1", n, str(n))
    reader = LogReader(logs, Kind.TRAINING, "job")
    reader.discover()
    answered, get = [], logs.get_log_events

    def once(**query):
        answered.append(query)
        if len(answered) == 2:
            raise ApiError("ExpiredTokenException", "expired", "GetLogEvents")
        return get(**query)

    logs.get_log_events = once
    with pytest.raises(ApiError):
        reader.poll()
    assert [line.text for line in reader.drain()] == ["0", "1"]
    assert [line.text for line in reader.poll()] == ["2", "3"]


def test_before_the_first_line_of_an_account_there_is_no_group():
    reader = LogReader(CloudWatch(), Kind.TRAINING, "job")
    reader.discover()
    assert reader.poll() == []
    assert reader.at_end


def test_a_token_that_cloudwatch_has_forgotten_costs_no_line():
    logs = CloudWatch(page=2)
    for n in range(5):
        logs.put("job/algo-1-1", n, str(n))
    reader = LogReader(logs, Kind.TRAINING, "job")
    found = all_of(reader)
    logs.forget_tokens()
    logs.put("job/algo-1-1", 2, "late")
    logs.put("job/algo-1-1", 9, "new")
    found += reader.poll() + reader.poll()
    assert [line.text for line in found] == ["0", "1", "2", "3", "4", "late", "new"]
    assert reader.at_end


def test_a_stream_that_somebody_deletes_does_not_end_the_others():
    logs = CloudWatch()
    logs.put("job/algo-1-1", 1, "one")
    logs.put("job/algo-2-1", 2, "two")
    reader = LogReader(logs, Kind.TRAINING, "job")
    assert len(all_of(reader)) == 2
    logs.delete("job/algo-1-1")
    logs.put("job/algo-2-1", 3, "three")
    assert [line.text for line in all_of(reader)] == ["three"]


@pytest.mark.parametrize("streams", [2, 100])
def test_a_round_over_many_long_streams_holds_a_bounded_number_of_lines(streams, monkeypatch):
    monkeypatch.setattr(log_reader, "WINDOWS", 20)
    monkeypatch.setattr(log_reader, "SHORTEST_WINDOW", 5)
    logs = CloudWatch(page=10)
    for n in range(300):
        for host in range(streams):
            logs.put(f"job/algo-{host}-1", n, str(n))
    reader = LogReader(logs, Kind.TRAINING, "job")
    reader.discover()
    most = 0
    while lines := reader.poll():
        most = max(most, len(lines))
    assert most == (2 * 20 if streams == 2 else 100) * 10
    assert max(len(each.times) for each in reader._streams.values()) <= (20 if streams == 2 else 10)


def test_a_long_stream_keeps_a_window_of_bounded_size(monkeypatch):
    monkeypatch.setattr(log_reader, "LONGEST_WINDOW", 100)
    logs = CloudWatch(page=1000)
    for n in range(3000):
        logs.put("job/algo-1-1", n, str(n))
    reader = LogReader(logs, Kind.TRAINING, "job")
    found = all_of(reader)
    logs.put("job/algo-1-1", 2950, "late")
    found += reader.sweep(all_streams=True)
    logs.put("job/algo-1-1", 3000, "last")
    found += reader.poll()
    assert [line.text for line in found] == [*map(str, range(3000)), "late", "last"]
    assert max(len(each.times) for each in reader._streams.values()) <= 201


def test_looking_for_late_lines_keeps_no_texts():
    """The window of a stream has up to 40,000 lines; of long ones that would be gigabytes."""
    text = "x" * 50_000

    class Pages:
        """200 pages of one long line each, made when they are asked for."""

        def get_log_events(self, **query):
            at = int(query.get("nextToken", 0))
            events = [{"timestamp": at, "message": f"{at} {text}"}] if at < 200 else []
            return {"events": events, "nextForwardToken": str(min(at + 1, 200))}

        def describe_log_streams(self, **query):
            return {"logStreams": [{"logStreamName": "job/algo-1-1"}]}

    reader = LogReader(Pages(), Kind.TRAINING, "job")
    assert len(all_of(reader)) == 200
    tracemalloc.start()
    try:
        assert reader.sweep(all_streams=True) == []
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("all_streams", [True, False])
def test_a_stream_that_was_deleted_after_it_was_read_has_no_late_lines(all_streams):
    logs = CloudWatch()
    for host in (1, 2):
        logs.put(f"job/algo-{host}-1", 10, "early")
    reader = LogReader(logs, Kind.TRAINING, "job")
    all_of(reader)
    logs.put("job/algo-1-1", 5, "late")
    logs.delete("job/algo-2-1")
    assert texts(reader.sweep(all_streams=all_streams)) == [("algo-1-1", "late")]


def test_new_lines_of_a_stream_that_was_read_to_its_end_cost_one_call():
    logs = CloudWatch()
    reader = LogReader(logs, Kind.TRAINING, "job")
    logs.put("job/algo-1-1", 1, "one")
    all_of(reader)
    for n in range(2, 5):
        before = logs.calls
        logs.put("job/algo-1-1", n, str(n))
        assert [line.text for line in reader.poll()] == [str(n)]
        assert logs.calls == before + 1
        assert reader.is_up_to_date
        assert not reader.at_end, "CloudWatch promises an end only by the same token"
    assert reader.poll() == []
    assert reader.at_end


@pytest.mark.parametrize(("lines", "text"), [(250, "x"), (100, "x" * 6000)])
def test_a_page_that_may_be_full_is_followed_by_the_next_one(lines, text, monkeypatch):
    monkeypatch.setattr(log_reader, "SHORT_PAGE", 101, raising=False)
    logs = CloudWatch(page=100 if text == "x" * 6000 else 200)
    reader = LogReader(logs, Kind.TRAINING, "job")
    logs.put("job/algo-1-1", 0, "first")
    all_of(reader)
    for n in range(1, lines + 1):
        logs.put("job/algo-1-1", n, text)
    assert len(reader.poll()) == lines
    assert reader.at_end


def test_all_lines_ask_no_stream_again_that_was_read_to_its_end():
    logs = CloudWatch(page=10)
    for host in range(1, 11):
        for n in range(2000 if host == 1 else 5):
            logs.put(f"job/algo-{host}-1", n, str(n))
    reader = LogReader(logs, Kind.TRAINING, "job")
    assert sum(map(len, reader.read_all())) == 2045
    assert logs.calls == 1 + 201 + 9 * 2  # streams; pages of the long one and of the others, each with its end


class Talkative(CloudWatch):
    """A host prints a line whenever somebody reads; each is 10 ms younger than the one before."""

    printing, printed, date = True, 0, "Thu, 01 Jan 1970 00:00:01 GMT"

    def describe_log_streams(self, **query):
        answered = {"HTTPHeaders": {"date": self.date}} if self.date else {}
        return {**super().describe_log_streams(**query), "ResponseMetadata": answered}

    def get_log_events(self, **query):
        if self.printing:
            self.print()
        return super().get_log_events(**query)

    def print(self):
        self.put("job/algo-1-1", 10 * self.printed, str(self.printed))
        self.printed += 1


@pytest.mark.parametrize("before", [1, 250])
def test_a_look_for_late_lines_does_not_run_after_a_host_that_keeps_printing(before):
    logs = Talkative()
    for _ in range(before):
        logs.print()
    reader = LogReader(logs, Kind.TRAINING, "job")
    reader.discover()
    found = [line for _ in range(4) for line in reader.poll()]
    logs.put("job/algo-1-1", 5, "late")
    calls = logs.calls
    found += reader.sweep(all_streams=True)
    assert logs.calls <= calls + 4, "it followed the end"
    logs.printing = False
    while not reader.at_end:
        found += reader.poll()
    assert sorted(line.text for line in found) == sorted(["late", *map(str, range(logs.printed))])


def test_all_lines_that_exist_are_those_before_the_look_by_the_clock_of_the_service():
    logs = Talkative(page=20)
    for _ in range(60):
        logs.print()
    texts = [line.text for lines in LogReader(logs, Kind.TRAINING, "job").read_all() for line in lines]
    assert texts[:101] == list(map(str, range(101))), "the last of them is 1 s old"
    assert len(texts) <= 220


def test_without_a_date_this_machine_has_the_clock(monkeypatch):
    logs = Talkative(page=20)
    logs.date = ""
    logs.print()
    monkeypatch.setattr(log_reader.time, "time", lambda: 3.0)
    texts = [line.text for lines in LogReader(logs, Kind.TRAINING, "job").read_all() for line in lines]
    assert texts[:301] == list(map(str, range(301)))
    assert len(texts) <= 340
