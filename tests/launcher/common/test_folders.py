"""Folders of our own are removed, and nothing that a link in them leads to."""

from __future__ import annotations

import os

from algorun.common.folders import remove_folder


def test_a_folder_is_removed_with_all_that_is_in_it(tmp_path):
    folder, outside = tmp_path / "run", tmp_path / "outside"
    (folder / "deep" / "deeper").mkdir(parents=True)
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (folder / "deep" / "file").write_text("x")
    (folder / "deep" / "link").symlink_to(outside)
    (folder / "dangling").symlink_to(tmp_path / "absent")
    os.mkfifo(folder / "pipe")
    remove_folder(str(folder))
    assert not folder.exists()
    assert (outside / "kept").read_text() == "kept"
    remove_folder(str(folder))  # there is none


def test_what_cannot_be_removed_stays_and_the_rest_goes(tmp_path, monkeypatch):
    for name in ("busy", "file"):
        (tmp_path / "run" / "folder").mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / "folder" / name).write_text("x")
    unlink = os.unlink

    def refusing(path):
        if path.endswith("busy"):
            raise PermissionError
        unlink(path)

    monkeypatch.setattr(os, "unlink", refusing)
    remove_folder(str(tmp_path / "run"))
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "folder", "busy"]
