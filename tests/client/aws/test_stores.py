"""Folders as S3, and S3 itself (moto): the same calls have the same effects."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pytest

from algorun_client.aws import s3_store
from algorun_client.aws.api import KeptHash
from algorun_client.aws.s3_store import S3Store
from algorun_client.aws.watched_file import WatchedFile
from algorun_client.common.errors import ApiError, Changed, Exists, NotFound
from algorun_client.common.progress import Silent
from algorun_client.fetch.folders import fetch_folder
from algorun_client.files import scan
from algorun_client.local import stores
from algorun_client.local.folder_store import FolderStore

BUCKET = "a-bucket"
KEYS = ("a", "a-b/x", "a/b/c", "a/b.txt", "a0", "b", "b%/x", "ünïcode/é")


@pytest.fixture(scope="module")
def moto_client():
    moto = pytest.importorskip("moto")
    boto3 = pytest.importorskip("boto3")
    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in keys.items():
            patch.setenv(name, value)
        with moto.mock_aws():
            yield boto3.client("s3")


@pytest.fixture(params=["folders", "s3"])
def store(request, tmp_path):
    if request.param == "folders":
        return FolderStore(tmp_path)
    client = request.getfixturevalue("moto_client")
    client.create_bucket(Bucket=BUCKET)
    for each in client.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
        client.delete_object(Bucket=BUCKET, Key=each["Key"])
    return S3Store(client)


def address(key: str) -> str:
    return f"s3://{BUCKET}/{key}"


def test_an_object_comes_back_with_its_hash(store, tmp_path):
    file = tmp_path / "large"
    file.write_bytes(os.urandom(300_000))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    written = store.put(address("x/large"), file, sha256=digest)
    other = store.put(address("x/small"), b"small")
    assert store.get(address("x/large")) == file.read_bytes()
    assert store.hash_of(address("x/large")) == KeptHash(digest, written)
    assert store.hash_of(address("x/small")) == KeptHash("", other)
    assert [each.etag for each in store.list(address("x/"))] == [written, other]
    assert store.hash_of(address("x/none")) is None
    store.download(address("x/large"), tmp_path / "deep" / "copy")
    assert (tmp_path / "deep" / "copy").read_bytes() == file.read_bytes()
    assert os.listdir(tmp_path / "deep") == ["copy"]
    store.put(address("x/small"), b"other", sha256=hashlib.sha256(b"other").hexdigest())
    assert store.get(address("x/small")) == b"other"
    kept = store.hash_of(address("x/small"))
    assert kept.sha256 == hashlib.sha256(b"other").hexdigest()
    assert kept.etag not in ("", other)


@pytest.mark.parametrize("size", [1000, 9_000_000])
def test_a_file_that_has_changed_makes_no_object(store, tmp_path, size):
    """Neither part of it: a large file goes to S3 in parts, and nobody sees those of an upload without an end."""
    file = tmp_path / "data"
    file.write_bytes(b"x" * size)
    with pytest.raises(Changed):
        store.put(address("data"), file, sha256=hashlib.sha256(b"y" * size).hexdigest())
    assert list(store.list(address(""))) == []
    if isinstance(store, S3Store):
        assert "Uploads" not in store.client.list_multipart_uploads(Bucket=BUCKET)
    store.put(address("data"), file, sha256=hashlib.sha256(b"x" * size).hexdigest())
    assert store.get(address("data")) == b"x" * size


def test_a_copy_is_like_its_source(store):
    etag = store.put(address("x/a"), b"content", sha256="digest")
    for _ in range(2):
        copied = store.copy(address("x/a"), address("y/b"), size=7, etag=etag)
    assert store.hash_of(address("y/b")) == KeptHash("digest", copied)
    if isinstance(store, FolderStore):  # moto takes any ETag; the header is tested below
        store.put(address("x/a"), b"another")
        with pytest.raises(ApiError):
            store.copy(address("x/a"), address("y/c"), size=7, etag=etag)
    store.delete(address("x/a"))
    with pytest.raises(NotFound, match=re.escape(address("x/a"))):
        store.copy(address("x/a"), address("y/c"), size=7, etag=etag)
    assert store.get(address("y/b")) == b"content"
    assert [each.uri for each in store.list(address(""))] == [address("y/b")]


@pytest.mark.parametrize("content", ["bytes", "file"])
def test_an_object_that_must_not_exist_is_written_once(store, tmp_path, content):
    (tmp_path / "first").write_bytes(b"first")
    first = b"first" if content == "bytes" else tmp_path / "first"
    store.put(address("claim"), first, if_absent=True)
    with pytest.raises(Exists):
        store.put(address("claim"), b"second", if_absent=True, sha256="0")
    assert store.get(address("claim")) == b"first"


def test_what_is_absent_is_not_found(store, tmp_path):
    for key in ("none", "no/such/key"):
        with pytest.raises(NotFound, match=re.escape(address(key))):
            store.get(address(key))
        with pytest.raises(NotFound, match=re.escape(address(key))):
            store.download(address(key), tmp_path / "here")
        store.delete(address(key))
    assert not (tmp_path / "here").exists()
    assert list(store.list(address("none/"))) == []


def test_many_objects_are_removed_and_no_other(store):
    keys = [f"state/é/{n}" for n in range(3)] + ["state/a\nb", "state/<&>"]
    for key in (*keys, "state-2/x"):
        store.put(address(key), b"")
    store.delete_all([address(key) for key in (*keys, "state/none")])
    assert [each.uri for each in store.list(address("state"))] == [address("state-2/x")]
    store.delete_all([])


def test_folders_are_named_without_a_look_inside(store):
    for key in ("jobs/0001/request.json", "jobs/0001/output/a", "jobs/0010/x", "jobs/file", "jobs-2/0003/x"):
        store.put(address(key), b"x")
    assert list(store.folders(address("jobs/"))) == ["0001", "0010"]
    assert list(store.folders(address("none/"))) == []


def test_objects_are_listed_in_the_order_of_their_keys(store):
    for key in KEYS:
        if key != "a" or isinstance(store, S3Store):  # a folder cannot be a file as well
            store.put(address(key), key.encode())
    keys = sorted((key for key in KEYS if key != "a" or isinstance(store, S3Store)), key=str.encode)
    found = list(store.list(address("")))
    assert [each.uri for each in found] == [address(key) for key in keys]
    assert [each.size for each in found] == [len(key.encode()) for key in keys]
    assert [each.uri for each in store.list(address("a/"))] == [address("a/b.txt"), address("a/b/c")]
    assert [each.uri for each in store.list(address("a/b"))] == [address("a/b.txt"), address("a/b/c")]
    assert [each.uri for each in store.list(address("a0"))] == [address("a0")]
    store.delete(address("a/b/c"))
    assert [each.uri for each in store.list(address("a/b"))] == [address("a/b.txt")]


def test_a_store_can_be_opened_by_another_process(store, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    store.put(address("x"), b"x")
    assert stores.opened(stores.described(store)).get(address("x")) == b"x"


OWNER, ACCOUNT = "x-amz-expected-bucket-owner", "123456789012"
ENCRYPTED = ("x-amz-server-side-encryption", "x-amz-server-side-encryption-aws-kms-key-id")


@pytest.fixture
def sent(moto_client):
    """Operation and headers of each call."""
    calls: list[tuple[str, dict[str, str]]] = []

    def note(model, params, **_):
        calls.append((model.name, {name.lower(): value for name, value in params["headers"].items()}))

    for bucket in ("owned", "others"):
        moto_client.create_bucket(Bucket=bucket)
    moto_client.meta.events.register("before-call.s3.*", note)
    yield calls
    moto_client.meta.events.unregister("before-call.s3.*", note)


def use(store: S3Store, bucket: str, tmp_path: Path) -> None:
    """Every call of a store that reads."""
    store.get(f"s3://{bucket}/x")
    store.download(f"s3://{bucket}/x", tmp_path / "x")
    store.hash_of(f"s3://{bucket}/x")
    list(store.list(f"s3://{bucket}/"))
    list(store.folders(f"s3://{bucket}/"))


def test_every_call_to_the_bucket_of_tasks_names_its_owner(moto_client, sent, tmp_path):
    store = S3Store(moto_client, ACCOUNT, bucket="owned")
    etag = store.put("s3://owned/x", b"x", sha256="abc")
    assert sent[-1][1]["x-amz-meta-sha256"] == "abc"
    store.copy("s3://owned/x", "s3://owned/y", size=1, etag=etag)
    assert sent[-1][1]["x-amz-source-expected-bucket-owner"] == ACCOUNT
    assert sent[-1][1]["x-amz-copy-source-if-match"] == etag
    use(store, "owned", tmp_path)
    store.delete("s3://owned/y")
    assert len(sent) >= 8
    assert [name for name, headers in sent if headers.get(OWNER) != ACCOUNT] == []


def test_a_source_in_another_accounts_bucket_is_read_without_an_owner(moto_client, sent, tmp_path):
    moto_client.put_object(Bucket="others", Key="x", Body=b"x")
    sent.clear()
    use(S3Store(moto_client, ACCOUNT, bucket="owned"), "others", tmp_path)
    assert len(sent) >= 5
    assert [name for name, headers in sent if OWNER in headers] == []


def test_every_object_that_is_written_is_encrypted_with_the_key(moto_client, sent, tmp_path):
    store = S3Store(moto_client, ACCOUNT, "a-key", bucket="owned")
    large = tmp_path / "large"
    large.write_bytes(b"x" * 9_000_000)
    etag = store.put("s3://owned/x", b"x")
    store.put("s3://owned/claim", b"x", if_absent=True)
    store.put("s3://owned/large", large)
    store.copy("s3://owned/x", "s3://owned/y", size=1, etag=etag)
    made = [headers for name, headers in sent if name in ("PutObject", "CreateMultipartUpload", "CopyObject")]
    assert len(made) == 4
    assert [[headers.get(name) for name in ENCRYPTED] for headers in made] == [["aws:kms", "a-key"]] * 4


ODD = ("x" * 255, "é" * 127, "😀" * 63, "-rf", "two\nlines", "e\u0301", "a b%2F+&=?#", "~", "\\", "$HOME")


@pytest.mark.parametrize("name", ODD, ids=range(len(ODD)))
def test_odd_names_go_up_and_come_home(store, tmp_path, name):
    """Up to 255 bytes, which is all that a file system takes: nothing is added to the name meanwhile."""
    (tmp_path / "home").mkdir()
    file = tmp_path / "home" / name
    file.write_bytes(b"content")
    (found,) = scan.data(tmp_path / "home", "--in").files
    store.put(address(f"f/{found.name}"), file.read_bytes())
    assert [each.uri for each in store.list(address("f/"))] == [address(f"f/{name}")]
    assert fetch_folder(store, address("f/"), tmp_path / "back", Silent(), print) == 1
    assert os.listdir(tmp_path / "back") == [name]
    assert (tmp_path / "back" / name).read_bytes() == b"content"


def test_a_file_that_is_cut_at_its_end_while_it_is_sent_makes_no_object(moto_client, tmp_path, monkeypatch):
    """s3transfer reads a part after the other, and takes a short last one for the end."""
    moto_client.create_bucket(Bucket="parts")
    store, file, read = S3Store(moto_client), tmp_path / "data", WatchedFile.read
    file.write_bytes(b"x" * 9_000_000)

    def cut(self: WatchedFile, size: int = -1) -> bytes:
        content = read(self, size)
        os.truncate(file, 8_900_000)
        return content

    monkeypatch.setattr(WatchedFile, "read", cut)
    with pytest.raises(Changed):
        store.put("s3://parts/data", file, sha256=hashlib.sha256(b"x" * 9_000_000).hexdigest())
    assert list(store.list("s3://parts/")) == []


@pytest.fixture
def large(moto_client, tmp_path, monkeypatch):
    """A store of an account's bucket, and an object that is copied in parts. Its address and ETag."""
    moto_client.create_bucket(Bucket="copies")
    store, file = S3Store(moto_client, ACCOUNT, "a-key", bucket="copies"), tmp_path / "data"
    file.write_bytes(b"x" * 9_000_000)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    etag = store.put("s3://copies/x", file, sha256=digest)
    monkeypatch.setattr(s3_store, "ONE_COPY", 8_000_000)
    return store, "s3://copies/x", etag


@pytest.mark.parametrize("version", ["new", "old"])
def test_a_large_object_of_an_accounts_bucket_is_copied_with_its_hash(large, sent, version, monkeypatch):
    store, source, etag = large
    if version == "old":  # s3transfer before 0.18 takes nothing from the source
        monkeypatch.setattr(
            "s3transfer.copies.CopySubmissionTask._apply_preserved_metadata", lambda _, given, __: given, raising=False
        )
    store.copy(source, "s3://copies/y", size=9_000_000, etag=etag)
    assert [name for name, _ in sent].count("UploadPartCopy") == 2
    assert [name for name, headers in sent if headers.get(OWNER) != ACCOUNT] == []
    assert [[headers.get(name) for name in ENCRYPTED] for name, headers in sent if name == "CreateMultipartUpload"] == [
        ["aws:kms", "a-key"]
    ]
    assert store.hash_of("s3://copies/y").sha256 == store.hash_of(source).sha256 != ""
    assert len(store.get("s3://copies/y")) == 9_000_000


def test_an_interrupted_copy_leaves_no_parts_and_no_object(large, moto_client):
    store, source, etag = large
    left = []

    def interrupt(**_: object) -> None:
        left.append(store.interrupt(0.0))

    moto_client.meta.events.register("before-call.s3.UploadPartCopy", interrupt)
    try:
        with pytest.raises(ApiError, match="Interrupted"):
            store.copy(source, "s3://copies/z", size=9_000_000, etag=etag)
    finally:
        moto_client.meta.events.unregister("before-call.s3.UploadPartCopy", interrupt)
    assert left[0] == 1, "it may have left parts at that moment, and the text says so"
    assert [each.uri for each in store.list("s3://copies/z")] == []
    assert "Uploads" not in moto_client.list_multipart_uploads(Bucket="copies")
