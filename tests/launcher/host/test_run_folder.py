"""The run folder: below TMPDIR, or below /tmp where TMPDIR cannot hold it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from algorun.common.errors import UserError
from algorun.host.ranks.rank_port import LONGEST_TEMPORARY, run_folder
from tests.conftest import algorun


def _mounted(folder: Path, options: str) -> None:
    folder.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("no mount (Debian's package mount)")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "test", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.decode().strip()}")


@pytest.fixture(params=["size=4k", "nr_inodes=2", "size=128k", "ro"])
def full(request, tmp_path):
    """A folder that is full, has no inode left for a socket, holds a folder but no file, or is read-only."""
    folder = tmp_path / "full"
    _mounted(folder, request.param)
    if request.param == "size=128k":
        (folder / "filler").write_bytes(bytes(96 * 1024))
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_job_runs_where_tmpdir_is_full(full, tmp_path, nothing_left):
    (tmp_path / "job.py").write_text("print('fine')")
    done = algorun("run", "job.py", cwd=tmp_path, ALGORUN_TEST=nothing_left, TMPDIR=str(full),
                   SAGEMAKER_BASE_DIR=str(tmp_path / "ml"))  # fmt: skip
    assert done.code == 0, done.text
    assert not [name for name in os.listdir(full) if name != "filler"]


def test_where_no_folder_can_be_used_both_are_named(full, tmp_path):
    with pytest.raises(
        UserError, match=f"TMPDIR: {full}: .*; {tmp_path}/gone: No such file or directory; fix: name a folder"
    ):
        run_folder(str(full), LONGEST_TEMPORARY + 100, f"{tmp_path}/gone")
    with pytest.raises(UserError, match="TMPDIR: .*: more than 3 characters, too many for a socket's path"):
        run_folder(str(tmp_path), 3, f"{tmp_path}/gone")
    assert not [name for name in os.listdir(full) if name != "filler"]


def test_a_folder_that_takes_no_socket_is_not_used(tmp_path, monkeypatch):
    """As some network file systems do; none of them is at hand."""
    bind = socket.socket.bind

    class Refusing(socket.socket):
        def bind(self, address: str) -> None:
            if str(address).startswith(str(tmp_path / "one")):
                raise PermissionError(1, "Operation not permitted")
            bind(self, address)

    monkeypatch.setattr(socket, "socket", Refusing)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    made = run_folder(f"{tmp_path}/one", LONGEST_TEMPORARY + 100, f"{tmp_path}/two")
    assert made.startswith(f"{tmp_path}/two/")
    assert os.listdir(made) == []
    assert os.listdir(tmp_path / "one") == []
