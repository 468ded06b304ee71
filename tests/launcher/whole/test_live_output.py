"""`algorun simulate` on a terminal: colours, rows that are drawn anew, and one cause."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from tests.conftest import clean_environ
from tests.terminal import on_terminal

PEER = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:19855"
# Rank 2 fails; the others then lose their connection, as torch tells it.
FAILS = f"""
import os, sys, time
rank = int(os.environ["RANK"])
print("train_loss: 0.5 of", rank)
if rank != 2:
    time.sleep(0.3)
    raise RuntimeError("{PEER}")
raise ValueError("the batch holds a label 12, allowed 0..9")
"""
CAUSE = "algorun: exception: rank 2 on algo-2, exit 1, attempt 1: ValueError: the batch holds a label 12, allowed 0..9"
ARGV = (sys.executable, "-I", "-m", "algorun", "simulate", "-j", "2x2", "program.py")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "program.py").write_text(FAILS)
    return tmp_path


def logs(folder) -> list[str]:
    """What the log files of ranks 0 to 3 hold."""
    paths = sorted(folder.glob("algorun-simulate/algo-*/output/data/logs/rank-*.log"), key=lambda path: path.name)
    return [path.read_text() for path in paths]


@pytest.mark.parametrize("columns", [80, 120])
def test_the_cause_is_shown_once_and_the_ranks_that_it_ended_are_counted(folder, columns):
    shown = on_terminal(ARGV, columns, clean_environ(), folder)
    text = "\n".join(shown.lines)
    whole = "".join(shown.lines)  # a line that is wider than the terminal goes on in the next row
    assert shown.code == 1
    assert whole.count("ValueError: the batch") == 2  # the headline, and the traceback's last line
    assert whole.count(CAUSE) == 1
    assert "Connection closed" not in text
    assert text.count("Traceback") == 1
    assert "algorun: 3 other ranks failed with it (algo-1: 0, 1; algo-2: 3)\n" in text
    assert "algorun: their lines: algorun-simulate/*/output/data/logs\n" in text
    assert shown.lines[-1] == "failed nnodes=2 world_size=4 code=1"
    assert re.match(r"\[\d algo-\d\]", text.split("algorun: exception")[0].splitlines()[-1])  # no table in between
    assert (
        text.index("algorun: their lines") < text.index("algorun: time of algo-1") < text.index("algorun: hosts left")
    )
    assert len(shown.lines) - text.split("algorun: exception")[0].count("\n") < 24  # one screen
    assert ["Traceback" in log for log in logs(folder)] == [True] * 4


@pytest.mark.slow
def test_ranks_whose_tracebacks_waited_too_long_are_counted(folder):
    """The hub waits for a failure that is older than those it knows: longer than a traceback waits for the end."""
    shown = on_terminal(ARGV, 120, clean_environ(ALGORUN_BLAME_S="6.5"), folder)
    text = "\n".join(shown.lines)
    assert text.count("lost its peer; 4 lines of its traceback:") == 3
    assert "algorun: 3 other ranks failed with it (algo-1: 0, 1; algo-2: 3)\n" in text


@pytest.mark.parametrize("command", [("run", "--slots", "2"), ("simulate", "-j", "1x2")])
def test_the_cause_stands_above_the_times(tmp_path, command):
    (tmp_path / "program.py").write_text("raise ValueError('the batch holds a label 12')\n")
    argv = (*ARGV[:4], *command, "program.py")
    environ = clean_environ(SAGEMAKER_BASE_DIR=str(tmp_path / "ml"))
    pipe = subprocess.PIPE
    done = subprocess.run(
        argv, env=environ, cwd=tmp_path, stdout=pipe, stderr=subprocess.STDOUT, text=True, timeout=60, check=False
    )
    at = [done.stdout.index(text) for text in ("\nalgorun: exception: ", "\nalgorun: time of ", "\nfailed nnodes=1")]
    assert at == sorted(at)
    assert done.stdout.count("algorun: time of ") == 1


def test_a_pipe_gets_every_line_and_the_closing_line_with_its_cause(folder):
    done = subprocess.run(
        ARGV, env=clean_environ(), cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    for rank, log in enumerate(logs(folder)):
        mark = f"[{rank} algo-{rank // 2 + 1}] "
        of_rank = [line.removeprefix(mark) for line in done.stderr.splitlines() if line.startswith(mark)]
        assert of_rank == [line for line in log.splitlines() if "train_loss" not in line]
    assert CAUSE.removeprefix("algorun: ") in done.stdout.splitlines()[-1]
    assert "\x1b" not in done.stdout + done.stderr


def test_a_file_for_stderr_gets_every_line(folder):
    with (folder / "errors").open("wb") as errors:
        shown = on_terminal(ARGV, 80, clean_environ(), folder, stderr=errors.fileno())
    said = (folder / "errors").read_text()
    assert said.count("Traceback") == 5  # of each rank, and in the failure
    assert "\x1b" not in said
    assert "failed with it" not in "\n".join(shown.lines)
    assert "ValueError: the batch holds" in "".join(shown.lines[-3:])  # the closing line is whole


GOES_ON = """
import os, time
from algorun import should_stop
while not should_stop():
    print("step: 1/9 train_loss: 0.25", flush=True)
    time.sleep(0.2)
"""


@pytest.mark.parametrize(
    ("environ", "colours", "rows"),
    [({}, True, True), ({"NO_COLOR": "1"}, False, True), ({"TERM": "dumb"}, False, False)],
    ids=["terminal", "NO_COLOR", "dumb"],
)
def test_rows_below_the_lines_show_where_the_job_is(tmp_path, environ, colours, rows):
    (tmp_path / "program.py").write_text(GOES_ON)
    asked: list[int] = []

    def stop(found: bytes, process: subprocess.Popen[bytes]) -> None:
        wanted = (b"[0 algo-1]", b"[1 algo-2]", b"train:loss 0.25" if rows else b"")  # both ranks handle a stop
        if all(each in found for each in wanted) and not asked:
            asked.append(process.pid)
            process.send_signal(signal.SIGINT)

    argv = (*ARGV[:-2], "2x1", "program.py")
    shown = on_terminal(argv, 80, clean_environ(**environ), tmp_path, seen=stop)
    assert shown.code == 128 + signal.SIGINT
    assert ("\x1b[35m[0 algo-1]\x1b[0m step" in shown.raw) is colours
    assert ("program.py on 2 hosts x 1 rank  " in shown.raw) is rows
    assert ("Ctrl-C asks the job to stop" in shown.raw) is rows
    assert re.fullmatch(r"stopped nnodes=2 world_size=2 why=SIGINT on algo-\d", shown.lines[-1])
    assert not any("hosts x" in line for line in shown.lines)  # the rows have gone
    assert colours or not re.search(r"\x1b\[(\d;)?3\d", shown.raw)
    assert rows or "\x1b" not in shown.raw


def test_a_start_without_a_terminal_does_not_load_the_display():
    code = (
        "import sys; from algorun import cli; from algorun.commands import simulate, host_output\n"
        "host_output.display('', {}, {})\n"
        "assert not {'algorun.commands.live_output', 'algorun.control.failures.held_tracebacks'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=60)
