"""Objects in S3."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, cast

from algorun.common.aside import aside
from algorun_client.common.errors import ApiError, BucketDenied, BucketMissing, Changed, NotFound
from algorun_client.common.refusals import Refusal, refusal

from . import fields
from .addresses import split
from .api import KeptHash, StoredObject
from .boto_errors import api_error, as_api_errors
from .boto_types import Client, Transfer, TransferManager
from .fields import Table
from .watched_file import WatchedBytes, WatchedFile

SHA256 = "sha256"  # the key of the object's metadata: an ETag is no hash of a file that was uploaded in parts
LONG = 256 * 1024  # bytes that may take a while on a slow line
IN_PARTS = 8 * 1024 * 1024  # bytes from which on a file is sent in parts, as s3transfer does
ONE_COPY = 256 * 1024 * 1024  # bytes: more is copied in parts, because a copy has one minute to answer
# The right that a call needs. A text such as "is not authorized to perform: kms:Decrypt on .." knows better.
RIGHTS = {
    "PutObject": "s3:PutObject",
    "CopyObject": "s3:GetObject and s3:PutObject",
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "ListObjectsV2": "s3:ListBucket",
    "DeleteObject": "s3:DeleteObject",
    "DeleteObjects": "s3:DeleteObject",
}
NAMED_RIGHT = re.compile(r"to perform: ([\w-]+:\w+)")
AT_ONCE = 16  # parts of large files, all files together
ONE_DELETE = 1000  # objects that a call may name
NOT_IN_XML = re.compile("[\x00-\x1f\ufffe\uffff]")  # in keys that such a call cannot name


class S3Store:
    """An ObjectStore on a boto3 client of S3.

    `bucket`: the one that tasks are kept in; `account`: the owner that it must have (ExpectedBucketOwner), "" for any.
    Other buckets are the user's choice, and may be anybody's. `kms_key`: encrypts what is written; "" leaves it to the
    bucket's default.
    """

    def __init__(self, client: Client, account: str = "", kms_key: str = "", bucket: str = "") -> None:
        self.client, self.account, self.kms_key, self.bucket = client, account, kms_key, bucket
        self._interrupted = threading.Event()
        self._large = _LargeFiles(client)
        # Before botocore's own answer, which would try an interrupted call again.
        client.meta.events.register_first("needs-retry.s3", self._end_if_interrupted)

    def _owner(self, bucket: str) -> dict[str, str]:
        return {"ExpectedBucketOwner": self.account} if self.account and bucket == self.bucket else {}

    def _written(self, bucket: str) -> dict[str, object]:
        """Arguments of every call that makes an object."""
        key = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": self.kms_key} if self.kms_key else {}
        return {**self._owner(bucket), **key}

    def put(self, uri: str, content: bytes | Path, *, if_absent: bool = False, sha256: str = "") -> str:
        """As ObjectStore. A file is sent in parallel parts where it is large, unless `if_absent`."""
        bucket, key = split(uri)
        extra = self._written(bucket)
        if sha256:
            extra["Metadata"] = {SHA256: sha256}
        with _errors("PutObject", bucket):
            if isinstance(content, Path) and content.stat().st_size < IN_PARTS:
                content = _read(content, sha256)
            if isinstance(content, bytes):
                body = WatchedBytes(content, self._check) if len(content) > LONG else content
                return self._put(bucket, key, body, extra, if_absent)
            if if_absent:
                with open(content, "rb") as file:
                    return self._put(bucket, key, file, extra, if_absent)
            with WatchedFile(content, sha256, self._check) as file:
                self._large.upload(file, bucket, key, extra)  # does not tell the ETag
        found = self.hash_of(uri) if sha256 else None
        return found.etag if found is not None and found.sha256 == sha256 else ""

    def _put(self, bucket: str, key: str, body: object, extra: dict[str, object], if_absent: bool) -> str:
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        return _etag(self.client.put_object(Bucket=bucket, Key=key, Body=body, **extra, **condition))

    def copy(self, source: str, uri: str, *, size: int, etag: str) -> str:
        """As ObjectStore."""
        (from_bucket, from_key), (bucket, key) = split(source), split(uri)
        extra = {**self._written(bucket), "CopySourceIfMatch": etag}
        origin = {"Bucket": from_bucket, "Key": from_key}
        with _errors("CopyObject", bucket, source):
            if size <= ONE_COPY:
                if owner := self._owner(from_bucket):
                    extra["ExpectedSourceBucketOwner"] = owner["ExpectedBucketOwner"]
                answer = self.client.copy_object(Bucket=bucket, Key=key, CopySource=origin, **extra)
                return _etag(fields.inner(answer, "CopyObjectResult"))
            # s3transfer takes no owner of the source, and asks for the source by HEAD, where an ETag stands in quotes.
            extra["CopySourceIfMatch"] = f'"{etag}"'
            found = self.hash_of(source)
            # Before 0.18 it forgets the source's metadata; since then it takes other ones only with REPLACE.
            extra |= {"MetadataDirective": "REPLACE", "Metadata": {SHA256: found.sha256} if found else {}}
            self._large.copy(origin, bucket, key, extra)
        return ""

    def interrupt(self, wait_s: float) -> int:
        """As ObjectStore."""
        self._interrupted.set()
        return self._large.cancel(wait_s)

    def _check(self) -> None:
        if self._interrupted.is_set():
            raise ApiError("Interrupted", "the upload was interrupted", "PutObject")

    def _end_if_interrupted(self, caught_exception: Exception | None = None, **_: object) -> None:
        if caught_exception is not None:
            self._check()

    def get(self, uri: str) -> bytes:
        """As ObjectStore."""
        bucket, key = split(uri)
        with _errors("GetObject", bucket, uri):
            answer = self.client.get_object(Bucket=bucket, Key=key, **self._owner(bucket))
            return cast("BinaryIO", answer["Body"]).read()

    def download(self, uri: str, path: Path, moved: Callable[[int], None] | None = None) -> None:
        """As ObjectStore. A large object is fetched in parallel parts."""
        bucket, key = split(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside(path) as made, _errors("GetObject", bucket, uri):
            self.client.download_file(bucket, key, str(made), ExtraArgs=self._owner(bucket) or None, Callback=moved)

    def hash_of(self, uri: str) -> KeptHash | None:
        """As ObjectStore."""
        bucket, key = split(uri)
        try:
            with _errors("HeadObject", bucket):
                answer = self.client.head_object(Bucket=bucket, Key=key, **self._owner(bucket))
        except NotFound:
            return None
        return KeptHash(fields.text(fields.inner(answer, "Metadata"), SHA256), _etag(answer))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """As ObjectStore."""
        bucket, start = split(prefix)
        lister = self.client.get_paginator("list_objects_v2")
        with _errors("ListObjectsV2", bucket):
            for page in lister.paginate(Bucket=bucket, Prefix=start, **self._owner(bucket)):
                for item in fields.tables(page, "Contents"):
                    uri = f"s3://{bucket}/{item['Key']}"
                    yield StoredObject(
                        uri=uri,
                        size=fields.number(item, "Size") or 0,
                        etag=_etag(item),
                        modified=cast("datetime", item["LastModified"]),
                    )

    def folders(self, prefix: str) -> Iterator[str]:
        """As ObjectStore."""
        bucket, start = split(prefix)
        lister = self.client.get_paginator("list_objects_v2")
        with _errors("ListObjectsV2", bucket):
            for page in lister.paginate(Bucket=bucket, Prefix=start, Delimiter="/", **self._owner(bucket)):
                for each in fields.tables(page, "CommonPrefixes"):
                    yield fields.required(each, "Prefix")[len(start) : -1]

    def delete(self, uri: str) -> None:
        """As ObjectStore."""
        bucket, key = split(uri)
        with _errors("DeleteObject", bucket):
            self.client.delete_object(Bucket=bucket, Key=key, **self._owner(bucket))

    def delete_all(self, uris: Sequence[str]) -> None:
        """As ObjectStore."""
        for begin in range(0, len(uris), ONE_DELETE):
            some = uris[begin : begin + ONE_DELETE]
            in_xml = [uri for uri in some if not NOT_IN_XML.search(uri)]
            for uri in set(some).difference(in_xml):
                self.delete(uri)
            if in_xml:
                self._delete_some(split(in_xml[0])[0], [split(uri)[1] for uri in in_xml])

    def _delete_some(self, bucket: str, keys: Sequence[str]) -> None:
        wanted = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        with _errors("DeleteObjects", bucket):
            answer = self.client.delete_objects(Bucket=bucket, Delete=wanted, **self._owner(bucket))
            for refused in fields.tables(answer, "Errors"):
                text = f"{fields.text(refused, 'Key')}: {fields.text(refused, 'Message')}"
                raise api_error(fields.text(refused, "Code"), text, "DeleteObjects")


@contextmanager
def _errors(operation: str, bucket: str, uri: str = "") -> Iterator[None]:
    """As `as_api_errors`; an error names the right that is missing and the bucket, or the object that is missing.

    `uri`: the object that the call reads.
    """
    try:
        with as_api_errors(operation):
            yield
    except NotFound as error:
        if error.code == "NoSuchBucket":
            raise BucketMissing(error, bucket) from None
        raise NotFound(error.code, f"{uri}: {error.message}", operation) if uri else error from None
    except ApiError as error:
        if refusal(error) is not Refusal.DENIED:
            raise
        named = NAMED_RIGHT.search(error.message)
        raise BucketDenied(error, named[1] if named else RIGHTS[operation], bucket) from None


def _etag(answer: Table) -> str:
    return fields.text(answer, "ETag").strip('"')


def _read(path: Path, sha256: str) -> bytes:
    content = path.read_bytes()
    if sha256 and hashlib.sha256(content).hexdigest() != sha256:
        raise Changed(str(path))
    return content


class _LargeFiles:
    """Uploads and copies in parts, by one manager for all: its threads and memory do not grow with their number."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Condition()
        self._manager: TransferManager | None = None
        self._futures: set[Transfer] = set()
        self._cancelled = False

    def upload(self, file: WatchedFile, bucket: str, key: str, extra: dict[str, object]) -> None:
        """Returns when the object is there. After an error or `cancel` its parts are removed."""
        self._finish(lambda manager: manager.upload(file, bucket, key, extra_args=extra), "PutObject")

    def copy(self, origin: dict[str, str], bucket: str, key: str, extra: dict[str, object]) -> None:
        """As upload, from another object."""
        self._finish(lambda manager: manager.copy(origin, bucket, key, extra_args=extra), "CopyObject")

    def _finish(self, begin: Callable[[TransferManager], Transfer], operation: str) -> None:
        with self._lock:
            if self._manager is None:
                from boto3.s3.transfer import TransferConfig, create_transfer_manager

                config = TransferConfig(
                    multipart_threshold=IN_PARTS, max_concurrency=AT_ONCE, preferred_transfer_client="classic"
                )
                self._manager = create_transfer_manager(self._client, config)
            future = begin(self._manager)
            self._futures.add(future)
            if self._cancelled:
                future.cancel()
        try:
            future.result()
        except Exception as error:
            if self._cancelled:
                raise ApiError("Interrupted", "the upload was interrupted", operation) from error
            raise
        finally:
            with self._lock:
                self._futures.discard(future)
                self._lock.notify_all()

    def cancel(self, wait_s: float) -> int:
        """Ends all of them, and removes their parts. Returns how many are not done with that after `wait_s`."""
        with self._lock:
            self._cancelled = True
            futures = list(self._futures)
        for each in futures:
            each.cancel()
        with self._lock:
            self._lock.wait_for(lambda: not self._futures, wait_s)
            return len(self._futures)
