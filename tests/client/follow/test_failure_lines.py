"""What a terminal is shown of a failure of a job that is followed."""

from __future__ import annotations

import sys

import pytest

from algorun.control.failures.held_tracebacks import HELD_S
from algorun_client.follow.failure_lines import FailureLines
from algorun_client.follow.log_reader import LogLine
from tests.conftest import clean_environ
from tests.terminal import on_terminal

PEER = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:19855"
CAUSE = "exception: rank 2 on algo-2, exit 1, attempt 1: ValueError: label 12 (at train.py:7)"
FAILURE = f"{CAUSE}\nTraceback (most recent call last):\nValueError: label 12"
COMMAND = "algorun logs job --where local"


def traceback(host, rank, words):
    lines = ("Traceback (most recent call last):", '  File "t.py", line 7, in <module>', words)
    return [LogLine(host, f"{host}-1", 1, f"[{rank} {host}] {line}") for line in lines]


def told_by(host, closing=True):
    first, *rest = FAILURE.splitlines()
    texts = [f"algorun: {first}", *(f"| {line}" for line in rest)]
    texts += [f"failed nnodes=2 world_size=4 code=1 {CAUSE}"] if closing else []
    return [LogLine(host, f"{host}-1", 2, text) for text in texts]


TRACEBACKS = [
    *traceback("algo-2", 2, "ValueError: label 12"),
    *traceback("algo-1", 0, f"RuntimeError: {PEER}"),
    *traceback("algo-1", 1, f"RuntimeError: {PEER}"),
    *traceback("algo-2", 3, "KeyError: 'mine'"),
]


def test_the_cause_comes_first_and_once_and_other_exceptions_are_shown_whole():
    lines = FailureLines(0.0, COMMAND)
    loss = LogLine("algo-1", "algo-1-1", 1, "[0 algo-1] train_loss: 1")
    assert lines.take([loss, *TRACEBACKS], 0.0) == [loss]
    *cause, closing = lines.take([*told_by("algo-1"), *told_by("algo-2")], 1.0)
    assert cause == told_by("algo-1")[:-1]
    assert closing.text == "failed nnodes=2 world_size=4 code=1"
    end = lines.end(FAILURE)
    assert end.is_told
    assert end.count == "2 other ranks failed with it (algo-1: 0, 1)"
    assert end.lines == [LogLine("algo-2", "", 0, line.text) for line in traceback("algo-2", 3, "KeyError: 'mine'")]


def test_a_job_that_goes_on_shows_its_tracebacks_soon():
    lines = FailureLines(2.0, COMMAND)
    assert lines.take(TRACEBACKS, 0.0) == []
    assert lines.take([], HELD_S + 1.9) == []
    shown = [line.text for line in lines.take([], HELD_S + 2.0)]
    assert shown.count(f"[0 algo-1] lost its peer; 3 lines of its traceback: {COMMAND}") == 1
    assert "[2 algo-2] ValueError: label 12" in shown
    end = lines.end("")
    assert (end.count, end.lines) == ("", [])


def test_a_count_that_may_lack_ranks_says_at_least():
    """A host has said nothing of its end, or a traceback waited for too long: it may be of an earlier attempt."""
    lines = FailureLines(0.0, COMMAND)
    lines.take([*TRACEBACKS[:6], *told_by("algo-1")], 0.0)
    assert lines.end(FAILURE).count == "at least 1 other rank failed with it (algo-1: 0)"
    lines = FailureLines(0.0, COMMAND)
    lines.take(TRACEBACKS[3:6], 0.0)
    lines.take([*TRACEBACKS[6:], *told_by("algo-1"), *told_by("algo-2")], HELD_S)
    assert lines.end(FAILURE).count == "at least 1 other rank failed with it (algo-1: 1)"


def test_without_the_failure_in_the_log_the_end_has_to_tell_it():
    lines = FailureLines(0.0, COMMAND)
    lines.take(TRACEBACKS, 0.0)
    end = lines.end(FAILURE)
    assert not end.is_told
    assert end.count.startswith("at least 2 other ranks")


@pytest.mark.parametrize("failure", ["", FAILURE])
def test_lines_that_only_look_like_a_failure_are_shown(failure):
    lines = FailureLines(0.0, COMMAND)
    texts = (
        "| a table",
        "failed nnodes=9 code=9",
        "algorun: warning: x",
        f"[0 algo-1] algorun: {CAUSE}",
        "Traceback (most",
    )
    listed = [LogLine("algo-1", "algo-1-1", 1, text) for text in texts]
    assert lines.take([*listed, *told_by("algo-1", closing=False), *listed], 0.0) == [
        *listed,
        *told_by("algo-1", closing=False),
        *listed,
    ]
    assert lines.end(failure).lines == []


def test_submit_on_a_terminal_shows_the_cause_before_tracebacks(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    program = f"""
import os, time
if os.environ["RANK"] != "2":
    time.sleep(0.3)
    raise RuntimeError("{PEER}")
raise ValueError("label 12")
"""
    (folder / "train.py").write_text(program)
    environ = clean_environ(ALGORUN_LOCAL_ROOT=str(tmp_path / "root"))
    argv = (
        sys.executable,
        "-m",
        "algorun",
        *["submit", "--where", "local", "--hosts", "2", "--slots", "2", "train.py"],
    )
    shown = on_terminal(argv, 200, environ, folder)
    text = "\n".join(shown.lines)
    assert shown.code == 1
    assert text.count("Traceback") == text.count("algorun: exception: rank 2 on algo-2") == 1
    assert "Connection closed" not in text
    assert "algorun: 3 other ranks failed with it (algo-1: 0, 1; algo-2: 3)\n" in text
    job = shown.lines[-1].split()[2]
    assert f"algorun: their lines: algorun logs {job} --where local\n" in text
    cause = text.index("algorun: exception")  # which host is the first to end differs
    assert cause < min(text.index("algorun: time of algo-1"), text.index("failed nnodes=2"))
    all_lines = on_terminal((*argv[:3], "logs", job, "--where", "local"), 200, environ, folder)
    assert "\n".join(all_lines.lines).count("[0 algo-1] Traceback") == 1
