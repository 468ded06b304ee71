"""A host on which no further process or thread can start: one line with the limit, 69 on all hosts, and nothing left."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from algorun.common.event_loop import Loop
from algorun.common.process_limit import is_limit
from algorun.host.output.logs import Console
from tests.conftest import clean_environ
from tests.launcher.whole.supervisors import by_hand

GROUPS = ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")


@pytest.fixture
def group():
    """A cgroup in which processes and threads can be limited."""
    for base in GROUPS:
        with contextlib.suppress(OSError):
            made = Path(base, f"algorun-test-{os.getpid()}")
            made.mkdir()
            if (made / "pids.max").exists():
                yield made
                assert (made / "cgroup.procs").read_text() == ""  # nothing is left
                made.rmdir()
                return
            made.rmdir()
    pytest.skip("no cgroup can be made here")


def within(group: Path, most: int) -> list[str]:
    """Words before a command: it runs with a limit of processes and threads."""
    (group / "pids.max").write_text(str(most))
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]


@pytest.mark.slow(but=["run-1", "train-2", "simulate-1"])
@pytest.mark.parametrize(
    ("command", "most"),
    [("run", 1), ("run", 2), ("run", 3), ("train", 2), ("simulate", 1), ("simulate", 2), ("simulate", 3)],
)
def test_a_limit_of_processes_is_one_line(group, most, command, tmp_path, nothing_left):
    (tmp_path / "job.py").write_text("print('fine')")
    environ = {"ALGORUN_TEST": nothing_left, "SAGEMAKER_BASE_DIR": str(tmp_path / "ml")}
    words = {"run": ["job.py"], "train": [], "simulate": ["-j", "2x1", "job.py"]}[command]
    if command == "train":
        config = tmp_path / "ml/input/config"
        config.mkdir(parents=True)
        (config / "resourceconfig.json").write_text('{"hosts": ["algo-1"], "current_host": "algo-1"}')
        (config / "hyperparameters.json").write_text('{"sagemaker_program": "job.py"}')
        (tmp_path / "ml/code").mkdir()
        (tmp_path / "ml/code/job.py").write_text("print('fine')")
    done = subprocess.run(
        [*within(group, most), sys.executable, "-I", "-m", "algorun", command, *words],
        cwd=tmp_path, env=clean_environ(**environ), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 69, done.stdout + done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "no further process" in line]
    assert line.startswith("algorun: ")
    assert f"pids.max of its cgroup is {most}" in line
    assert "fix: raise it (docker run --pids-limit" in line
    assert "Traceback" not in done.stdout + done.stderr
    if command != "simulate":
        assert "no further process" in (tmp_path / "ml/output/failure").read_text()


@pytest.mark.slow(but=["1-0"])
@pytest.mark.parametrize(("most", "limited"), [(1, 0), (1, 1), (2, 1)])
def test_where_one_host_can_start_nothing_both_name_it(group, most, limited, tmp_path, nothing_left):
    program = tmp_path / "job.py"
    program.write_text("import time; time.sleep(60)")
    before = [[], []]
    before[limited] = within(group, most)
    codes, outs, seconds = by_hand(tmp_path, nothing_left, [[program], [program]], before=before)
    assert codes == [69, 69], outs
    texts = {(tmp_path / host / "output/failure").read_text().partition("\n")[0] for host in outs}
    assert len(texts) == 1
    assert f"preflight: algo-{limited + 1}, exit 69: " in texts.pop()
    assert seconds < 30


def _refuse(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_lines_are_written_where_no_thread_can_start(monkeypatch, capfd):
    monkeypatch.setattr(threading.Thread, "start", _refuse)
    console = Console()
    console.say("one")
    console.say("two", fd=2)
    assert tuple(capfd.readouterr()) == ("one\n", "two\n")
    monkeypatch.undo()
    console.say("three")
    console.close()
    assert capfd.readouterr().out == "three\n"


def test_a_blocking_call_is_made_where_no_thread_can_start(monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", _refuse)
    loop, found = Loop(), []
    loop.in_thread(lambda: 7, lambda result: (found.append(result), loop.stop()))
    loop.run()
    loop.close()
    assert found == [7]


def test_which_errors_are_a_limit():
    assert is_limit(BlockingIOError(11, "Resource temporarily unavailable"))
    assert is_limit(RuntimeError("can't start new thread"))
    assert not is_limit(FileNotFoundError(2, "No such file or directory"))
    assert not is_limit(BlockingIOError(11, "Resource temporarily unavailable", "file"))
    assert not is_limit(RuntimeError("other"))
