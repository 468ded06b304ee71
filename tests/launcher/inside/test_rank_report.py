"""What a process of a rank sends of its exception: all that Python's own traceback shows."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import traceback
from concurrent.futures.process import BrokenProcessPool

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.control.failures import tracebacks
from algorun.host.ranks.rank_port import parse_raised
from algorun.inside import rank_report


def caught(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as found:
        return found


def sent(error: BaseException, folder, monkeypatch):
    """The report as the supervisor reads it."""
    monkeypatch.setenv("ALGORUN_RUN_DIR", str(folder))
    monkeypatch.setenv("ALGORUN_RANK", "3")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(folder / "raised"))
        rank_report.send(type(error), error, error.__traceback__)
        return parse_raised(receiver.recv(256 * 1024))


# A tree of exceptions: a text is one, a list is a group, a pair is an exception with its cause or context.
TREES = st.recursive(
    st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=6),
    lambda inner: st.lists(inner, min_size=1, max_size=3) | st.tuples(inner, inner, st.booleans()),
    max_leaves=6,
)


def build(tree) -> BaseException:
    if isinstance(tree, str):
        error = caught(ValueError(tree))
        error.add_note(f"note on {tree}")
        return error
    if isinstance(tree, list):
        return caught(ExceptionGroup("group", [build(each) for each in tree]))
    outer, inner, chosen = build(tree[0]), build(tree[1]), tree[2]
    (outer.__cause__, outer.__context__) = (inner, None) if chosen else (None, inner)
    outer.__suppress_context__ = chosen
    return outer


@given(TREES)
def test_each_exception_and_note_that_python_shows_is_in_the_text(tree):
    error = build(tree)
    text = rank_report.describe(error, error.__traceback__).split("\n")
    shown = tracebacks.lines_of("".join(traceback.format_exception(error)))
    for line in shown:
        if line.startswith(("ValueError: ", "note on ", "ExceptionGroup: ")):
            assert line in text


def test_a_report_comes_as_it_was_sent(tmp_path, monkeypatch):
    raised = sent(caught(KeyError("lr")), tmp_path, monkeypatch)
    assert (raised.rank, raised.pid, raised.type, raised.message) == (3, os.getpid(), "KeyError", "'lr'")
    assert raised.traceback.endswith("    raise error\nKeyError: 'lr'")
    assert raised.parents[0][0] == os.getpid()
    assert raised.ended == ()
    assert not raised.explains_itself


def test_a_syntax_error_has_its_line_and_its_column(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text("x = 1\nif x:\n    def forward(self:\n        pass\n")
    with pytest.raises(SyntaxError) as found:
        compile((tmp_path / "model.py").read_text(), str(tmp_path / "model.py"), "exec")
    raised = sent(found.value, tmp_path, monkeypatch)
    assert raised.message == "'(' was never closed"
    assert raised.traceback.endswith(
        f"  File \"{tmp_path}/model.py\", line 3\n    def forward(self:\n               ^\nSyntaxError: '(' was never closed"
    )
    assert tracebacks.place(raised.traceback, str(tmp_path)) == "model.py:3"


class Broken(Exception):  # as scripts name theirs
    def __str__(self):
        raise RuntimeError("no text")


def test_a_broken_text_hides_nothing_else(tmp_path, monkeypatch):
    raised = sent(caught(Broken()), tmp_path, monkeypatch)
    assert raised.message == "(its message cannot be shown)"
    assert raised.type.endswith("Broken")


def deep(number: int) -> None:
    if number:
        deep(number - 1)
    raise RecursionError("too deep")


def test_a_deep_traceback_keeps_both_its_ends():
    with pytest.raises(RecursionError) as found:
        deep(300)
    text = rank_report.describe(found.value, found.value.__traceback__)
    assert len(text) < 16 * 1024
    assert "frames left out]" in text
    assert (
        text.index("test_a_deep_traceback")
        < text.index("frames left out]")
        < text.rindex('raise RecursionError("too deep")')
    )


def test_a_large_group_is_bounded(tmp_path, monkeypatch):
    error = caught(ExceptionGroup("many", [caught(ValueError("x" * 3000)) for _ in range(5000)]))
    raised = sent(error, tmp_path, monkeypatch)
    assert len(raised.traceback) <= rank_report.LONGEST_TRACEBACK
    assert (
        "ExceptionGroup: many (5000 sub-exceptions)" in raised.message or raised.message == "many (5000 sub-exceptions)"
    )
    assert "and 4992 more members" in raised.traceback


PYTHON = (sys.executable, "-c")


@pytest.mark.parametrize(
    "call",
    [
        lambda: subprocess.run([*PYTHON, "raise SystemExit(3)"], check=True),
        lambda: subprocess.check_output([*PYTHON, "raise SystemExit(3)"]),
    ],
)  # fmt: skip
def test_the_error_of_a_command_names_its_process(call):
    with pytest.raises(subprocess.CalledProcessError) as found:
        call()
    ((pid, status),), command = rank_report.ended_children(found.value)
    assert status == 3
    assert pid > 1
    assert command == f"{sys.executable} -c raise SystemExit(3)"


def test_without_the_process_the_command_is_named():
    with pytest.raises(subprocess.CalledProcessError) as found:
        subprocess.check_call(["false"])
    assert rank_report.ended_children(found.value) == ([(0, 1)], "false")


def kind(module: str, name: str, *bases: type) -> type:
    return type(name, bases or (Exception,), {"__module__": module})


ELASTIC = "torch.distributed.elastic.multiprocessing.errors"
PROCESS = kind("torch.multiprocessing.spawn", "ProcessException")


class Failed:
    def __init__(self, pid, exitcode):
        self.pid, self.exitcode = pid, exitcode


def elastic() -> BaseException:
    error = kind(ELASTIC, "ChildFailedError")("..")
    error.failures = {1: Failed(11, 1), 0: Failed(12, -signal.SIGTERM)}
    return error


def spawned() -> BaseException:
    error = kind("torch.multiprocessing.spawn", "ProcessExitedException", PROCESS)("..")
    error.error_pid, error.exit_code = 13, -9
    return error


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (elastic(), [(11, 1), (12, -15)]),
        (spawned(), [(13, -9)]),
        (BrokenProcessPool("a process was terminated"), [(0, 1)]),
        (RuntimeError("training failed"), []),
        (ExceptionGroup("g", [elastic()]), []),
    ],
)  # fmt: skip
def test_errors_of_launchers_name_the_processes_that_failed(error, ended):
    assert rank_report.ended_children(error)[0] == ended
    if isinstance(error, ExceptionGroup):
        assert rank_report.ended_children(rank_report.first_member(error))[0] == [(11, 1), (12, -15)]


def test_an_error_of_ours_says_that_it_explains_itself(tmp_path, monkeypatch):
    from algorun_train.common.errors import UserError

    assert sent(caught(UserError("option --x: no; fix: leave it out")), tmp_path, monkeypatch).explains_itself
