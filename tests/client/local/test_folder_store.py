"""Folders that stand for buckets: what only they can get wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.common.errors import UserError
from algorun_client.local.folder_store import FolderStore, file_names, key_part
from tests.conftest import examples

PARTS = st.lists(st.sampled_from([".", "%", "%2E", "%25"]), max_size=4).map("".join)


def test_people_may_put_files_and_links_into_a_bucket(tmp_path):
    store = FolderStore(tmp_path / "root")
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    (data / "deep" / "50%").write_text("x")
    (data / "deep" / "loop").symlink_to(data)
    bucket = store.path("s3://pictures")
    bucket.parent.mkdir(parents=True)
    bucket.symlink_to(data)
    assert [each.uri for each in store.list("s3://pictures/")] == ["s3://pictures/deep/50%"]
    assert store.get("s3://pictures/deep/50%") == b"x"
    assert store.hash_of("s3://pictures/deep/50%").sha256 == ""


def test_a_hash_does_not_outlive_its_file(tmp_path):
    store = FolderStore(tmp_path)
    store.put("s3://b/x", b"one", sha256="1")
    path = store.path("s3://b/x")
    path.unlink()
    path.write_bytes(b"two")
    assert store.hash_of("s3://b/x").sha256 == ""


@pytest.mark.parametrize("note", [b"[]", b"[" * 100_000, b""], ids=["list", "deep", "empty"])
def test_a_damaged_note_of_a_hash_is_no_note(tmp_path, note):
    store = FolderStore(tmp_path)
    store.put("s3://b/x", b"one", sha256="1")
    (path,) = [each for each in tmp_path.rglob("*") if each.is_file() and b"sha256" in each.read_bytes()]
    path.write_bytes(note)
    assert store.hash_of("s3://b/x").sha256 == ""


def test_an_object_of_a_folder_store_cannot_be_written_through_a_link(tmp_path):
    store = FolderStore(tmp_path)
    store.put("s3://b/x", b"one")
    store.link("s3://b/x", tmp_path / "channel" / "x")
    assert (tmp_path / "channel" / "x").read_bytes() == b"one"
    assert store.path("s3://b/x").stat().st_mode & 0o222 == 0
    store.download("s3://b/x", tmp_path / "copy")
    assert (tmp_path / "copy").stat().st_mode & 0o200


@examples(200)
@given(st.lists(st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"])) | PARTS).map("/".join))
def test_every_key_has_file_names_and_every_file_name_a_key(key):
    names = file_names(key)
    assert not {"", ".", ".."} & set(names)
    assert not any("/" in name for name in names)
    assert "/".join(map(key_part, names)) == key
    plain = [name for name in key.split("/") if name not in ("", ".", "..")]
    assert [file_names(key_part(name)) for name in plain] == [[name] for name in plain]


def test_paths_below_the_root_only(tmp_path):
    store = FolderStore(tmp_path)
    store.put("s3://b/../../x", b"x")
    assert [each.uri for each in store.list("s3://b/")] == ["s3://b/../../x"]
    assert {path.relative_to(tmp_path).parts[:2] for path in Path(tmp_path).rglob("*") if path.is_file()} == {
        ("s3", "b")
    }


@pytest.mark.parametrize("uri", ["s3://../x", "s3:///x", "s3://./x", "file:///x", "s3://.aside/x", ""])
def test_an_address_without_a_bucket_is_refused(tmp_path, uri):
    with pytest.raises(UserError, match="bucket"):
        FolderStore(tmp_path).put(uri, b"x")
