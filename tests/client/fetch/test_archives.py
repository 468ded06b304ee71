"""An archive of a job is unpacked as a whole or not at all, and never outside of its folder."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from algorun.common.errors import UserError
from algorun_client.common.errors import NotFound
from algorun_client.common.progress import Silent
from algorun_client.fetch.archives import fetch_archive
from algorun_client.fetch.log_files import write_logs
from algorun_client.local.folder_store import FolderStore

URI = "s3://b/jobs/model.tar.gz"


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "root")


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", text: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(text)
    return info, text.encode()


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return made.getvalue()


def test_files_folders_and_links_inside_come_home(store, tmp_path):
    sym, hard = member("blob/link", tarfile.SYMTYPE, "../a/b"), member("hard", tarfile.LNKTYPE, "a/b")
    store.put(URI, archive(sym, member("a/b", text="model"), hard, member("empty", tarfile.DIRTYPE)))
    assert fetch_archive(store, URI, tmp_path / "home" / "model", Silent(), say=print) == 3
    home = tmp_path / "home" / "model"
    assert (home / "a/b").read_text() == (home / "blob/link").read_text() == (home / "hard").read_text() == "model"
    assert (home / "empty").is_dir()
    assert os.listdir(tmp_path / "home") == ["model"]


EVIL = {
    "a place above": [member("../x", text="x")],
    "a link and a file through it": [member("l", tarfile.SYMTYPE, ".."), member("l/x", text="x")],
    "an absolute link": [member("l", tarfile.SYMTYPE, "/etc/passwd")],
    "a link above": [member("l", tarfile.SYMTYPE, "../../x")],
    "a hard link above": [member("l", tarfile.LNKTYPE, "../x")],
    "a link through links": [
        member("a/b", tarfile.DIRTYPE),
        member("a/b/x", tarfile.SYMTYPE, "../../"),
        member("a/b/l", tarfile.SYMTYPE, "x/../.."),
    ],
    "a link behind a link": [member("a", tarfile.SYMTYPE, "."), member("../b", tarfile.SYMTYPE, "a")],
    "a link that a later link leads out": [member("l", tarfile.SYMTYPE, "c/.."), member("c", tarfile.SYMTYPE, ".")],
    "a hard link to a link of another folder": [
        member("f", text="x"),
        member("d/l", tarfile.SYMTYPE, "../f"),
        member("h", tarfile.LNKTYPE, "d/l"),
    ],
    "a device": [member("d", tarfile.CHRTYPE)],
    "a pipe": [member("d", tarfile.FIFOTYPE)],
}


@pytest.mark.parametrize("evil", EVIL)
def test_a_member_that_would_reach_outside_is_left_out_and_the_others_come_home(store, tmp_path, evil):
    home, said = tmp_path / "home" / "model", []
    home.mkdir(parents=True)
    (home / "old").write_text("old")
    store.put(URI, archive(member("first", text="1"), *EVIL[evil], member("last", text="2")))
    before = sorted(map(str, tmp_path.glob("*")))
    assert fetch_archive(store, URI, home, Silent(), say=said.append) >= 2
    assert ((home / "first").read_text(), (home / "last").read_text()) == ("1", "2")
    assert sorted(map(str, tmp_path.glob("*"))) == before
    assert [each.name for each in (tmp_path / "home").iterdir()] == ["model"]
    assert all(path.resolve().is_relative_to(home) for path in home.rglob("*"))
    assert len(said) == 1
    assert said[0].startswith(f"{URI}: ")
    assert said[0].endswith(": left out")


def test_a_link_to_a_path_of_the_job_comes_home(store, tmp_path):
    """Scripts make `latest` with a full path: os.symlink(f"{model_dir}/step-7", f"{model_dir}/latest")."""
    links = [
        member("latest", tarfile.SYMTYPE, "/opt/ml/model/step-7"),
        member("deep/latest", tarfile.SYMTYPE, "/opt/ml/model/step-7"),
        member("best", tarfile.SYMTYPE, "/opt/ml/checkpoints/7"),
        member("up", tarfile.SYMTYPE, "/opt/ml/model/../../etc"),
        *(member(f"more{number}", tarfile.SYMTYPE, "/x") for number in range(5)),
    ]
    said = []
    store.put(URI, archive(*links, member("step-7/w", text="weights")))
    fetch_archive(store, URI, tmp_path / "home", Silent(), home="/opt/ml/model", say=said.append)
    assert (tmp_path / "home" / "latest" / "w").read_text() == "weights"
    assert (tmp_path / "home" / "deep" / "latest" / "w").read_text() == "weights"
    assert "link 'best' leads out of the folder of the archive to '/opt/ml/checkpoints/7': left out" in said[0]
    assert "link 'up' leads out" in said[1]
    assert said[-1] == f"{URI}: 2 more members are left out"
    assert len(said) == 6


def test_ctrl_c_between_the_two_renames_leaves_the_old_folder(store, tmp_path, monkeypatch):
    home, rename = tmp_path / "home" / "model", Path.rename
    home.mkdir(parents=True)
    (home / "old").write_text("old")
    store.put(URI, archive(member("new", text="new")))

    def interrupted(self: Path, target: Path) -> Path:
        if self.name == "made":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch_archive(store, URI, home, Silent(), say=print)
    with pytest.raises(KeyboardInterrupt):
        write_logs([], home)
    assert (home / "old").read_text() == "old"
    assert os.listdir(tmp_path / "home") == ["model"]


@pytest.mark.parametrize("at", range(10, 200, 20))
def test_an_archive_with_a_wrong_byte_is_one_error(store, tmp_path, at):
    content = bytearray(archive(member("a", text=os.urandom(400).hex())))
    content[at] ^= 0xFF
    store.put(URI, bytes(content))
    with pytest.raises(UserError, match="is not a usable tar file"):
        fetch_archive(store, URI, tmp_path / "home", Silent(), say=print)
    assert not (tmp_path / "home").exists()


def test_a_damaged_archive_and_a_missing_one(store, tmp_path):
    store.put(URI, archive(member("a", text="a" * 10_000))[:-30])
    with pytest.raises(UserError, match="not a usable tar file"):
        fetch_archive(store, URI, tmp_path / "home", Silent(), say=print)
    with pytest.raises(NotFound):
        fetch_archive(store, "s3://b/nothing", tmp_path / "home", Silent(), say=print)
    assert not (tmp_path / "home").exists()
