"""Unchanged files cost no call of their own, and nothing that has changed is ever taken for unchanged."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from algorun.common.errors import UserError
from algorun_client.common.errors import ApiError
from algorun_client.common.progress import Silent
from algorun_client.files import inputs, scan
from algorun_client.local.folder_store import FolderStore
from algorun_client.request.model import Kind, Request, TaskAddress, Upload
from algorun_client.submit.place import uploads
from algorun_client.submit.place.uploads import upload
from tests.client.submit.place.memory import World

ADDRESS = TaskAddress(bucket="b", project="p", task="t")
TRAIN = ADDRESS.input("train", "f")
HASHES = f"{ADDRESS.uri}/input/train-hashes/f.json"


def request(contents: dict[str, bytes]) -> Request:
    made = tuple(
        Upload(uri=TRAIN + name, size=len(data), sha256=hashlib.sha256(data).hexdigest(), data=data)
        for name, data in contents.items()
    )
    return Request(kind=Kind.TRAINING, address=ADDRESS, number=1, job="j", create={}, uploads=made, mirrors=(TRAIN,))


def send(world: World, contents: dict[str, bytes]) -> list[str]:
    """The objects that were put, without the manifest; afterwards the bucket holds `contents`."""
    world.puts.clear()
    world.gets.clear()
    world.asked.clear()
    upload(world.target.store, request(contents), dict, Silent())
    held = {uri.removeprefix(TRAIN): data for uri, (data, _) in world.objects.items() if uri.startswith(TRAIN)}
    assert held == contents
    return [uri for uri in world.puts if uri != HASHES]


def test_a_thousand_unchanged_files_cost_one_listing_and_one_get():
    world, contents = World(), {f"{number:04d}": b"%d" % number for number in range(1000)}
    assert len(send(world, contents)) == 1000
    assert world.asked == []
    assert send(world, contents) == []
    assert (world.puts, world.gets, world.asked) == ([], [HASHES], [])


def test_a_manifest_that_another_client_has_made_stale_hides_no_change():
    world = World()
    send(world, {"a": b"1", "b": b"1", "c": b"1"})
    world.objects[TRAIN + "a"] = (b"2", "")  # of the same size, by another program
    world.objects[TRAIN + "b"] = (b"2", hashlib.sha256(b"2").hexdigest())  # by another of our clients
    assert sorted(send(world, {"a": b"1", "b": b"1", "c": b"1"})) == [TRAIN + "a", TRAIN + "b"]
    assert sorted(world.asked) == [TRAIN + "a", TRAIN + "b"]
    assert send(world, {"a": b"1", "b": b"1", "c": b"1"}) == []
    assert world.asked == []


def test_a_lost_or_damaged_manifest_costs_calls_and_no_upload():
    world, contents = World(), {"a": b"1", "b": b"22"}
    send(world, contents)
    for damaged in (
        None,
        b"",
        b"[]",
        b'{"format": 1}',
        b'{"format": 2, "objects": {}}',
        b'{"format": 1, "objects": {"a": [1]}}',
        b'{"format": 1, "objects": {"a": [Infinity, "", ""]}}',
        b"[" * 100_000,
    ):
        if damaged is None:
            del world.objects[HASHES]
        else:
            world.objects[HASHES] = (damaged, "")
        assert send(world, contents) == [], damaged
        assert sorted(world.asked) == [TRAIN + "a", TRAIN + "b"]
        assert json.loads(world.objects[HASHES][0])["objects"].keys() == contents.keys()


def test_an_object_whose_etag_is_unknown_is_asked_next_time():
    world, contents = World(), {"a": b"1"}
    put = world.put
    world.put = lambda *args, **options: (put(*args, **options), "")[1]  # type: ignore[method-assign]
    send(world, contents)
    assert send(world, contents) == []
    assert world.asked == [TRAIN + "a"]


def test_a_removed_file_leaves_the_manifest_too():
    world = World()
    send(world, {"a": b"1", "b": b"1"})
    send(world, {"a": b"1"})
    assert list(json.loads(world.objects[HASHES][0])["objects"]) == ["a"]


def large(path: Path) -> Request:
    """A request with one file that is too large to be sent from memory."""
    found = inputs.hashed(scan.data(path, "--in"), "--in")[0]
    made = Upload(uri=TRAIN + "x", size=found.size, sha256=found.sha256, path=found.path)
    return replace(request({}), uploads=(made,))


@pytest.mark.parametrize("how", ["written", "replaced"])
def test_a_large_file_that_changes_after_it_was_hashed_is_refused(tmp_path, monkeypatch, how):
    monkeypatch.setattr(uploads, "SMALL", 1)
    path, store = tmp_path / "data" / "x", FolderStore(tmp_path / "root")
    path.parent.mkdir()
    path.write_bytes(b"old")
    hashed, old = large(path.parent), path.stat()
    if how == "written":
        path.write_bytes(b"new")
    else:
        path.with_name("y").write_bytes(b"new")
        path.with_name("y").rename(path)
        os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
    with pytest.raises(UserError, match="x: the file changed while it was being uploaded; fix: submit again"):
        upload(store, hashed, dict, Silent())
    assert store.hash_of(TRAIN + "x") is None


def test_a_file_that_grows_while_it_is_hashed_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    digest = hashlib.file_digest

    def grow(*args: object):
        path.write_bytes(b"longer")
        return digest(*args)

    monkeypatch.setattr(hashlib, "file_digest", grow)
    with pytest.raises(UserError, match="x changes while it is read; fix: submit again when it is complete"):
        inputs.hashed(scan.data(path, "--in"), "--in")


def test_an_error_waits_for_no_other_upload():
    """Those of large files take hours, and no job will read them."""
    world, begun, interrupted, ended = World(), threading.Event(), threading.Event(), []

    def put(uri: str, content: bytes, **_: object) -> str:
        if uri.endswith("refused"):
            begun.wait(10)
            raise ApiError("AccessDenied", "no", "PutObject")
        begun.set()
        ended.append(interrupted.wait(2))
        raise ApiError("Interrupted", "the upload was interrupted", "PutObject")

    world.put = put  # type: ignore[method-assign]
    world.interrupt = lambda wait_s: int(interrupted.set() is not None)  # type: ignore[method-assign]
    with pytest.raises(ApiError, match="AccessDenied"):
        upload(world.target.store, request({"large": b"large", "refused": b"1"}), dict, Silent())
    assert ended == [True]
