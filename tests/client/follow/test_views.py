"""What people, files and programs see of a job that is followed."""

from __future__ import annotations

import io
import json
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from rich.console import Console

from algorun_client.aws.job_state import JobPhase, JobState
from algorun_client.follow.line_text import marked, shown
from algorun_client.follow.log_reader import LogLine
from algorun_client.follow.outcome import judge
from algorun_client.follow.terminal_view import TerminalView, where_it_is
from algorun_client.follow.view import JsonView, PlainView
from algorun_client.request.model import Kind
from tests.ci_commands import TEXTS, is_command

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def state(**changes: Any) -> JobState:
    phases = (
        JobPhase("Starting", BEGIN, BEGIN + timedelta(seconds=75)),
        JobPhase("Training", BEGIN + timedelta(seconds=75)),
    )
    base: dict[str, Any] = {"kind": Kind.TRAINING, "job": "job", "status": "InProgress", "phases": phases}
    return JobState(**(base | changes))


def test_plain_lines_tell_a_phase_once():
    out, err = io.StringIO(), io.StringIO()
    view = PlainView(out, err)
    for _ in range(3):
        view.state(state())
    assert err.getvalue() == "algorun: job: Training (after Starting 1 min 15 s)\n"


def test_json_is_one_object_a_line(capsys):
    view = JsonView()
    view.state(state())
    view.state(state())
    view.lines([LogLine("algo-1", "algo-1-1", 5, 'a "line"\nof two')])
    done = judge(state(status="Failed", failure="AlgorithmError: x"))
    view.end("job", done, "")
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["event"] for each in events] == ["state", "line", "end"]
    assert events[1] == {"event": "line", "host": "algo-1", "time_ms": 5, "text": 'a "line"\nof two'}
    assert (events[2]["code"], events[2]["code_known"], events[2]["source"]) == (1, False, "job")


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain é 漢", "plain é 漢"),
        (" 10%\r 50%\r100%", "100%"),
        ("\x1b[2Jgone\x07", "gone"),
        ("\x1b[1;31mred\x1b[0m \x1b[38:5:12mblue\x1b[m \x9b31mC1", "red blue C1"),
        ("\x1b]0;title\x07a \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\ b", "a link b"),
        ("\x1b]0;without an end", "0;without an end"),
        ("\x1bPq#0\x1b\\sixel \x1b(B\x1bcreset\x1b", "sixel reset"),
        ("\x1b[A\x1b[K 50%|#####     |", " 50%|#####     |"),
        ("right \u202eto left \ud800 \ufffd", "right to left  \ufffd"),
        ("a\tb\n", "a\tb"),
        ("a\nb", "a b"),
    ],
)
def test_a_hosts_line_does_not_move_the_cursor(text, seen):
    assert shown(text) == seen


@pytest.mark.parametrize(
    ("text", "mark", "rest"),
    [
        ("epoch 1", "[algo-2]", "epoch 1"),
        ("[3 algo-2] epoch 1", "[3 algo-2]", "epoch 1"),
        ("[setup algo-2] fetching", "[setup algo-2]", "fetching"),
        ("[3 algo-2]", "[3 algo-2]", ""),
        ("[3 algo-2] \x1b[31m[INFO] red", "[3 algo-2]", "[INFO] red"),
        ("[3 algo-1] of another host", "[algo-2]", "[3 algo-1] of another host"),
        ("[INFO] algo-2] x", "[algo-2]", "[INFO] algo-2] x"),
        ("[algo-2] x", "[algo-2]", "[algo-2] x"),
        ("[never closed algo-2", "[algo-2]", "[never closed algo-2"),
    ],
)
def test_a_line_has_one_mark_of_its_host(text, mark, rest):
    assert marked("algo-2", text) == (mark, rest)


def test_a_text_with_a_million_escapes_takes_no_time():
    assert shown("\x1b]" * 500_000 + "end") == "end"
    assert shown("\x1b]" + "a" * 500_000) == "a" * 500_000
    for begins in "\x90\x98\x9b\x9d\x9e\x9f":  # of eight bits: 256,000 of one took minutes
        assert shown(begins * 256_000 + "end") == "end"[begins == "\x9b" :]


def test_what_a_job_says_of_itself_moves_no_terminal():
    """The text of a failure, and the values of metrics."""
    evil = "\x1b[2J\x1b]0;title\x07boom \u202e"
    done = judge(state(status="Failed", failure=f"AlgorithmError: {evil}, exit code: 3"))
    out, err = io.StringIO(), io.StringIO()
    PlainView(out, err).end("job", done, "")
    screen = io.StringIO()
    view = TerminalView(Console(file=screen, force_terminal=True, width=80, color_system=None))
    view.state(state(metrics=(("loss", "loss: (.*)"),)))
    view.lines([LogLine("algo-1", "algo-1-1", 1, f"loss: {evil}{'9' * 100}")])
    view.note(evil)
    with view._console.capture() as below:
        view._console.print(view._below())
    view.end("job", done, "")
    assert "loss boom 9999" in below.get()
    for said in (err.getvalue(), screen.getvalue(), below.get()):
        assert "boom" in said
        assert not re.search("\x1b\\[2J|\x1b]|\u202e", said)


def test_the_newest_phases_are_seen_at_80_columns():
    begun = [BEGIN + timedelta(seconds=n * 100) for n in range(7)]
    names = ("Starting", "Downloading", "Training", "Interrupted", "Starting", "Training")
    phases = tuple(JobPhase(name, begun[n], begun[n + 1]) for n, name in enumerate(names))
    rows = where_it_is(state(job="a-project-with-a-name-and-a-task-0001-123abc", phases=phases), 80)
    assert [row.plain for row in rows] == [
        "a-project-with-a-name-and-a-task-0001-123abc",
        "..  Interrupted 1 min 40 s  Starting 1 min 40 s  Training 1 min 40 s",
    ]
    assert all(row.cell_len <= 80 for row in rows)
    assert [row.plain for row in where_it_is(state(phases=phases[:1]), 80)] == ["job  Starting 1 min 40 s"]


def test_the_terminal_shows_lines_phases_metrics_and_the_way_back():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, highlight=False, color_system=None)
    view = TerminalView(console)
    metrics = (("train:loss", r"loss: ([0-9.]+)"), ("bad", r"(?P<x"))
    view.state(state(metrics=metrics))
    view.lines(
        [LogLine("algo-1", "algo-1-1", 1, "[bold]loss: 0.5[/bold]"), LogLine("algo-2", "algo-2-1", 2, "x" * 300)]
    )
    with console.capture() as below:
        console.print(view._below())
    view.end("job", judge(state(status="Stopped")), "algorun logs -f job --region r")
    view.close()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    assert "[algo-1] [bold]loss: 0.5[/bold]\n" in text  # no markup, no colours of rich's own
    assert f"[algo-2] {'x' * 300}\n" in text  # not broken: it can be copied
    assert "job  Starting 1 min 15 s  Training" in below.get()
    assert "train:loss 0.5" in below.get()
    assert "come back with: algorun logs -f job --region r" in text
    assert "job job was stopped: exit 74, kind=stopped source=client" in text


@given(TEXTS)
def test_no_line_of_a_host_is_a_command_to_a_ci_system(text):
    assert not is_command(" ".join(marked("algo-1", text)))
    assert not is_command(f"  {shown(text)}")
    out, err = io.StringIO(), io.StringIO()
    JsonView(out).lines([LogLine("algo-1", "algo-1-1", 5, text)])
    PlainView(out, err).lines([LogLine("algo-1", "algo-1-1", 5, text)])
    PlainView(out, err).end("job", judge(state(status="Failed", failure=f"AlgorithmError: x\n{text}")), "")
    assert not is_command(out.getvalue() + err.getvalue())


def test_a_mark_keeps_a_line_as_it_is():
    assert marked("algo-1", "[3 algo-1] ::error::a") == ("[3 algo-1]", "::error::a")


def test_a_metric_that_takes_too_long_is_named_once_and_lines_go_on():
    out = io.StringIO()
    view = TerminalView(Console(file=out, force_terminal=True, width=200, color_system=None))
    metrics = (("slow", "(a+)+$"), ("loss", "(?:l)oss=([0-9.]+)"), ("none", "("), ("large", "a{99999999999999999999}"))
    view.state(state(metrics=metrics))
    began = time.monotonic()
    for number in range(3):
        view.lines(
            [LogLine("algo-1", "algo-1-1", 1, "a" * 200 + "b"), LogLine("algo-1", "algo-1-1", 1, f"loss={number}")]
        )
    assert time.monotonic() - began < 10
    assert view._metrics.values == {"loss": "2"}
    view.close()
    assert (
        out.getvalue().count("metric slow is not shown any more: the regular expression '(a+)+$' takes more than 0.5 s")
        == 1
    )
    assert out.getvalue().count("a" * 200) == 3
