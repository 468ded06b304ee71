"""What trackers are fed with, from files as a job writes them; and what becomes of a tracker that fails."""

from __future__ import annotations

import http.server
import json
import os
import socket
import threading
from types import SimpleNamespace

import pytest

from algorun.host.measuring import times_file
from algorun.host.measuring.times_file import TimesFile
from algorun.inside import tracker_kinds, tracker_rows, trackers
from algorun.inside.tracker_kinds import Run
from algorun.inside.tracker_rows import Feed, NewLines, result
from algorun.inside.trackers import Fed, JobEnd, Warnings
from algorun.timing.activities import NAMES
from algorun.timing.rank_times import RankTimes


@pytest.fixture
def feed(tmp_path):
    """A function that makes the feed of some expressions."""
    (tmp_path / "logs").mkdir()

    def make(*, before=None, sizes=None, **metrics):
        return Feed({"data": str(tmp_path), "host": "algo-1", "metrics": metrics, "sizes": sizes or {}}, before or {})

    return make


def add(path, *rows):
    with path.open("a") as file:
        file.writelines(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)


def values(rows):
    return [(found, step) for found, step, _ in rows]


def test_a_line_is_read_once_and_only_when_it_is_whole(tmp_path):
    lines = NewLines(str(tmp_path), "file")
    assert lines.read() == []
    add(tmp_path / "file", "one", "two")
    with (tmp_path / "file").open("a") as file:
        file.write("thr")
    assert lines.read() == ["one", "two"]
    assert lines.read() == []
    add(tmp_path / "file", "ee")
    assert lines.read() == ["three"]


def test_a_file_is_read_in_pieces_to_its_end(tmp_path, feed, monkeypatch):
    monkeypatch.setattr(tracker_rows, "MOST_BYTES", 64)
    told, found = feed(loss="loss=([0-9]+)"), []
    add(tmp_path / "logs" / "rank-00000.log", *(f"loss={number}" for number in range(50)))
    while True:
        found += [row[0]["loss"] for row in told.read()]
        if not told.has_more:
            break
    assert found == list(range(50))


def test_metrics_come_with_their_step(tmp_path, feed):
    rows = [
        {"kind": "step", "step": 4, "steps": 9, "epoch": 1, "train_loss": 0.5},
        "cut off by a full di",
        {"step": 8, "val_loss": 0.25},
    ]
    add(tmp_path / "metrics.jsonl", *rows)
    assert values(feed().read()) == [({"epoch": 1, "train_loss": 0.5}, 4), ({"val_loss": 0.25}, 8)]


def test_steps_and_attempts_of_a_program_of_one_s_own(tmp_path, feed):
    told = feed()
    times = tmp_path / "rank_times-algo-1.jsonl"
    add(times, {"format": 1, "host": "algo-1", "activities": []}, {"attempt": 1, "time": 10.0, "ranks": [0, 1]})
    add(
        times,
        {"steps": [4, 5], "time": 12.0},
        {"steps": [9, 8], "time": 14.0},
        {"attempt": 2, "time": 20.0},
        {"steps": [2, 2], "time": 21.0},
    )
    assert values(told.read()) == [
        ({"job/attempt": 1}, 0),
        ({"job/step": 4}, 4),
        ({"job/step": 8, "job/steps_per_s": 2.0}, 8),
        ({"job/attempt": 2}, 8),
        ({"job/step": 10}, 10),  # nobody knows which checkpoint it has resumed from
    ]


def test_steps_and_counts_go_on_in_a_later_job_of_the_run(tmp_path, feed):
    add(tmp_path / "rank_times-algo-1.jsonl", {"attempt": 1, "time": 1.0}, {"steps": [5], "time": 2.0})
    add(tmp_path / "logs" / "rank-00000.log", "loss=0.5", "loss=0.4")
    first = feed(loss="loss=([0-9.]+)")
    assert [row for row, _ in values(first.read()) if "loss" in row] == [{"loss": 0.5}, {"loss": 0.4}]
    sizes = {
        path.name if path.parent == tmp_path else f"logs/{path.name}": path.stat().st_size
        for path in tmp_path.rglob("*.*l*")
    }
    later = feed(before=first.progress, sizes=sizes, loss="loss=([0-9.]+)")
    assert list(later.read()) == []  # what the job before has left
    add(tmp_path / "rank_times-algo-1.jsonl", {"attempt": 1, "time": 9.0}, {"steps": [2], "time": 10.0})
    add(tmp_path / "logs" / "rank-00000.log", "loss=0.3")
    assert values(later.read()) == [({"job/attempt": 1}, 5), ({"job/step": 7}, 7), ({"loss": 0.3}, 3)]


def test_a_program_that_says_its_steps_is_believed(tmp_path, feed):
    """`ddp`, resumed at 5000: the launcher counts the steps of the attempt."""
    told = feed()
    times, metrics = tmp_path / "rank_times-algo-1.jsonl", tmp_path / "metrics.jsonl"
    add(times, {"attempt": 1, "time": 1.0})
    add(metrics, {"step": 5040, "train_loss": 0.5})
    add(times, {"steps": [45], "time": 2.0})
    told_steps = [step for _, step in values(told.read())]
    add(times, {"steps": [90], "time": 3.0})
    assert [*told_steps, *(step for _, step in values(told.read()))] == [0, 45, 5040, 5040]
    add(times, {"steps": [99], "time": 4.0})
    add(tmp_path / "host_figures-algo-1.jsonl", {"time": 4.0, "cpu": 1.0})
    assert {step for _, step in values(told.read())} == {5040}


def test_a_file_that_the_launcher_thins_out_is_read_on(tmp_path, feed, monkeypatch):
    monkeypatch.setattr(times_file, "MOST_REPORTS", 20)
    told, found = feed(), []
    file = TimesFile(tmp_path, "algo-1", pytest.fail)
    file.attempt(1, [0])
    for number in range(1, 101):
        file.report([RankTimes(0, 0, number, float(number), (0.0,) * len(NAMES))])
        found += [row["job/step"] for row, _ in values(told.read()) if "job/step" in row]
    assert found == sorted(set(found))
    assert found[-1] >= 90
    assert len(found) >= 35


def test_reports_that_are_written_again_after_a_restart_come_once(tmp_path, feed):
    told, metrics = feed(), tmp_path / "metrics.jsonl"
    rows = [{"step": number, "train_loss": 1 / number} for number in (10, 20, 30)]
    add(metrics, *rows)
    assert [step for _, step in values(told.read())] == [10, 20, 30]
    metrics.rename(tmp_path / "aside")
    add(metrics, *rows[:2])  # the checkpoint was of step 20
    assert list(told.read()) == []
    add(metrics, {"step": 30, "train_loss": 0.5})
    assert values(told.read()) == [({"train_loss": 0.5}, 30)]


def test_numbers_in_lines_are_at_the_step_they_say_or_are_counted(tmp_path, feed):
    told = feed(loss="loss=([0-9.]+)", accuracy="step (?P<step>[0-9]+) accuracy ([0-9.]+)")
    log = tmp_path / "logs" / "rank-00000.log"
    add(log, "loss=0.5", "nothing", "loss=0.25", "step 7 accuracy 0.9", "loss=1.2.3")
    assert values(told.read()) == [({"loss": 0.5}, 1), ({"loss": 0.25}, 2), ({"accuracy": 0.9}, 7)]
    add(tmp_path / "host_figures-algo-1.jsonl", {"time": 4.0, "cpu": 1.0})
    assert values(told.read()) == [({"algo-1/cpu": 1.0}, 7)]  # nobody else counts steps
    add(tmp_path / "rank_times-algo-1.jsonl", {"steps": [30], "time": 1.0})
    add(log, "loss=0.125")
    assert values(told.read())[-1] == ({"loss": 0.125}, 3)


def test_figures_of_the_host(tmp_path, feed):
    figures = {
        "cpu": 1.5,
        "memory_bytes": 25,
        "memory_limit_bytes": 100,
        "network_in": 7.0,
        "gpus": [{"busy": 0.9, "name": "H100"}],
    }
    add(tmp_path / "host_figures-algo-1.jsonl", {"time": 99.0, **figures})
    (row,) = feed().read()
    assert row == (
        {"algo-1/cpu": 1.5, "algo-1/network_in": 7.0, "algo-1/memory": 0.25, "algo-1/gpu0/busy": 0.9},
        0,
        99.0,
    )


def test_a_run_goes_on_where_its_file_is_and_a_new_one_begins_elsewhere(tmp_path):
    first = Run(str(tmp_path / "checkpoints"))
    first.is_called("mlflow", "abc")
    again = Run(str(tmp_path / "checkpoints"))
    assert (again.id, again.name_of("mlflow"), again.name_of("wandb")) == (first.id, "abc", "")
    again.keep({"step": 7, "printed": {"loss": 2}})
    assert Run(str(tmp_path / "checkpoints")).progress == {"step": 7, "printed": {"loss": 2}}
    assert Run(str(tmp_path / "checkpoints")).name_of("mlflow") == "abc"
    assert Run(str(tmp_path / "others")).id != first.id


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": 3}', "null"])
def test_a_file_of_a_run_that_is_none_is_replaced(tmp_path, text):
    (tmp_path / tracker_kinds.RUN_FILE).write_text(text)
    made = Run(str(tmp_path))
    assert Run(str(tmp_path)).id == made.id


def test_the_result_is_that_of_the_job_or_a_killed_launcher(tmp_path):
    assert result(str(tmp_path)) == (1, "the launcher was killed")
    add(tmp_path / "result.json", {"code": 67, "line": "failed code=67"})
    assert result(str(tmp_path)) == (67, "failed code=67")


class Recording:
    """A tracker in memory."""

    notice = ""

    def __init__(self, gate=None, fails=None):
        self.rows, self.ended, self._gate, self._fails = [], None, gate, fails

    def take(self, values, step, at):
        if self._gate is not None:
            self._gate.wait(20)
        if self._fails:
            raise self._fails
        self.rows.append(step)

    def end(self, code, line):
        self.ended = code, line


@pytest.fixture
def fed(monkeypatch):
    """A function that feeds a tracker; what is warned of is in the list."""

    def make(tracker, warned):
        monkeypatch.setitem(trackers.KINDS, "wandb", lambda setup, run: tracker)
        return Fed("wandb", {}, None, SimpleNamespace(say=lambda name, why: warned.append(f"{name}: {why}")))

    return make


def test_a_tracker_gets_all_rows_and_the_end(fed):
    tracker, warned = Recording(), []
    feeding = fed(tracker, warned)
    for step in range(100):
        feeding.put(({"loss": 1.0}, step, 0.0))
    feeding.put(({}, 100, 0.0))  # nothing in it
    feeding.end(JobEnd(0, "ok"))
    feeding.join(20)
    assert (tracker.rows, tracker.ended, warned) == (list(range(100)), (0, "ok"), [])


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_error(404)

    def log_message(self, *_):
        pass


def test_whatever_a_server_says_is_an_answer():
    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert tracker_kinds.no_answer(f"http://127.0.0.1:{server.server_port}") == ""


def test_a_server_that_refuses_or_stays_silent_gives_no_answer(monkeypatch):
    monkeypatch.setattr(tracker_kinds, "REACH_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert url in tracker_kinds.no_answer(url)
    assert "Connection refused" in tracker_kinds.no_answer(url)
    assert "unknown url type" in tracker_kinds.no_answer("no address")


def test_rows_that_are_lost_are_told_also_of_a_tracker_that_keeps_its_values_in_files():
    reader, writer = os.pipe()
    warnings = Warnings(writer)
    warnings.say_kept("wandb", "`wandb sync run` sends them: no answer")
    warnings.say("wandb", "it was too slow, 3 rows are lost")
    warnings.say("wandb", "again")
    os.close(writer)
    with open(reader) as said:
        assert said.read() == (
            "algorun: warning: tracker wandb keeps this job in files, as its server cannot be used: `wandb sync run` sends "
            "them: no answer\n"
            "algorun: warning: tracker wandb gets no more of this job, which goes on: it was too slow, 3 rows are lost\n"
        )


def test_a_tracker_that_fails_is_left_alone(fed):
    tracker, warned = Recording(fails=SystemExit("no network")), []
    feeding = fed(tracker, warned)
    for step in range(3):
        feeding.put(({"loss": 1.0}, step, 0.0))
    feeding.end(JobEnd(0, "ok"))
    feeding.join(20)
    assert warned == ["wandb: SystemExit: no network"]


def test_rows_that_a_slow_tracker_does_not_take_are_counted(fed, monkeypatch):
    monkeypatch.setattr(trackers, "MOST_WAITING", 10)
    gate, warned = threading.Event(), []
    tracker = Recording(gate)
    feeding = fed(tracker, warned)
    for step in range(30):
        feeding.put(({"loss": 1.0}, step, 0.0))
    feeding.end(JobEnd(1, "failed"))
    gate.set()
    feeding.join(20)
    assert tracker.ended == (1, "failed")
    lost = 30 - len(tracker.rows)
    assert lost >= 19
    assert warned == [f"wandb: it was too slow, {lost} rows are lost"]


def test_a_tracker_that_never_answers_is_not_waited_for(fed):
    gate, warned = threading.Event(), []
    feeding = fed(Recording(gate), warned)
    feeding.put(({"loss": 1.0}, 1, 0.0))
    feeding.put(({"loss": 1.0}, 2, 0.0))
    feeding.end(JobEnd(0, "ok"))
    feeding.join(0.1)
    assert warned == ["wandb: it has not answered in time, 2 rows are lost"]
    gate.set()


def test_a_warning_is_one_line_without_secrets(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    reader, writer = os.pipe()
    warnings = Warnings(writer)
    warnings.say("wandb", "401 for 0123456789abcdef\nat https://me:pass@api.wandb.ai/x")
    warnings.say("wandb", "again")
    os.close(writer)
    with os.fdopen(reader) as stream:
        assert stream.read() == (
            "algorun: warning: tracker wandb gets no more of this job, which goes on: 401 for *** at https://***@api.wandb.ai/x\n"
        )
