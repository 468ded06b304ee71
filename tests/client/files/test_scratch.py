"""Folders of commands: those of killed ones are removed, those of living ones never."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from algorun_client.files import scratch

COMMAND = """
import sys, time
from algorun_client.files import scratch
with scratch.folder("algorun-chain-") as path:
    (path / "code").write_text("x")
    print(path, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def command(temporary):
    """A command with a folder that is an hour old."""
    environ = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen([sys.executable, "-c", COMMAND], stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout
        path = Path(process.stdout.readline().strip())
        assert path.parent == temporary
        os.utime(path, (1, 1))
        try:
            yield process, path
        finally:
            process.kill()


def test_the_folder_of_a_killed_command_is_removed_by_the_next_one(command):
    process, path = command
    with scratch.folder("algorun-chain-"):
        assert (path / "code").exists()  # it lives
    process.kill()
    process.wait()
    with scratch.folder("algorun-submit-"):
        assert path.exists()  # another command's
    with scratch.folder("algorun-chain-") as own:
        assert not path.exists()
        assert own.is_dir()
    assert not own.exists()


def test_what_is_new_or_not_ours_stays(temporary):
    new, link, without_lock = (temporary / f"algorun-chain-{name}" for name in ("new", "link", "without"))
    new.mkdir()
    (new / scratch.LOCK).touch()
    without_lock.mkdir()
    os.utime(without_lock, (1, 1))
    target = temporary / "elsewhere"
    target.mkdir()
    (target / scratch.LOCK).touch()
    link.symlink_to(target)
    with scratch.folder("algorun-chain-"):
        assert new.is_dir()
        assert link.is_symlink()
        assert (target / scratch.LOCK).exists()
        assert without_lock.is_dir()
