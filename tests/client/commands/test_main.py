"""How any command of the client ends."""

from __future__ import annotations

import errno
import json
import os
import shlex
import signal

import pytest

from algorun_client.commands import ls
from algorun_client.commands.main import interrupted_by_signals, main
from algorun_client.connection import local_root
from tests.client.submit.test_submit import no_credentials


@pytest.mark.parametrize("as_json", [False, True])
def test_a_full_disk_is_one_error_with_its_fix(monkeypatch, capsys, as_json):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/x")

    monkeypatch.setattr(ls, "run", full)
    assert main(["ls", *(["--json"] if as_json else [])], {}) == 64
    said = capsys.readouterr()
    assert said.err.startswith("algorun: error: /tmp/x: No space left on device; fix: free some space")
    if as_json:
        assert json.loads(said.out)["kind"] == "error"


def test_a_closed_pipe_is_left_to_the_launchers_main(monkeypatch):
    def closed(*_: object) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(ls, "run", closed)
    with pytest.raises(BrokenPipeError):
        main(["ls"], {})


def test_the_folder_of_local_jobs_is_the_same_for_their_runner(tmp_path, monkeypatch):
    """It starts in another folder."""
    monkeypatch.chdir(tmp_path)
    assert local_root({"ALGORUN_LOCAL_ROOT": "jobs/here"}) == tmp_path / "jobs" / "here"


@pytest.mark.parametrize("command", ["status", "logs", "stop", "fetch"])
def test_the_word_for_the_job_that_a_command_is_about(command, capsys):
    """`target` is where jobs run."""
    with pytest.raises(SystemExit):
        main([command, "-h"], {})
    said = capsys.readouterr().out
    assert "JOB  " in said
    assert "TARGET" not in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_as_ctrl_c_does(number):
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt), interrupted_by_signals():
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN)  # as nohup does
        with interrupted_by_signals():
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)


UNDECIDED = ["submit", "--dry-run", "--image", "i", "--role", "R", "--hosts", "3", "--instance", "ml.g5.12xlarge"]


def lines_to_copy(monkeypatch, tmp_path, capsys, *words):
    monkeypatch.chdir(tmp_path)
    no_credentials(monkeypatch)
    (tmp_path / "train.py").write_text("")
    assert main([*UNDECIDED, *words], {}) == 64
    said = capsys.readouterr()
    assert said.out == ""
    assert "ml.g5.12xlarge has 4 GPUs, and nothing says how many ranks a host gets" in said.err
    return [line.removeprefix("algorun:   ") for line in said.err.splitlines() if line.startswith("algorun:   ")]


def test_both_ways_to_use_the_gpus_of_a_host_are_lines_to_copy(monkeypatch, tmp_path, capsys):
    lines = lines_to_copy(monkeypatch, tmp_path, capsys, "train.py", "--name", "a b", "$HOME")
    assert [shlex.split(line) for line in lines] == [
        ["algorun", "submit", option, *UNDECIDED[1:], "train.py", "--name", "a b", "$HOME"]
        for option in ("--per-gpu", "--per-host")
    ]
    for line in lines:  # and they are taken
        assert main(shlex.split(line)[1:], {}) == 0
        assert f"algorun_{line.split()[2][2:].replace('-', '_')}" in capsys.readouterr().out


def test_a_line_to_copy_holds_no_secret_and_no_stars_in_its_place(monkeypatch, tmp_path, capsys):
    lines = lines_to_copy(monkeypatch, tmp_path, capsys, "--env", "API_KEY=hunter2222", "train.py")
    assert lines == ["algorun submit --per-gpu ..", "algorun submit --per-host .."]
