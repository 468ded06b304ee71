"""A target in memory, in which a client can be killed before and after each call that changes something."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from algorun_client.aws.api import KeptHash, ReadyTarget, StoredObject, Target
from algorun_client.common.errors import ApiError, Exists, NotFound


class Killed(BaseException):
    """The client is gone: nothing of it runs any more."""


class World:
    """A bucket and an account. `kill_at` counts moments: each call that changes something has one before, one after."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.creates = 0
        self.puts: list[str] = []
        self.gets: list[str] = []
        self.asked: list[str] = []  # for their hashes
        self.copies: list[str] = []
        self.ages: dict[str, timedelta] = {}
        self.kill_at = -1
        self._moment = 0
        self.status = "InProgress"

    @property
    def target(self) -> Target:
        return ReadyTarget(name="aws", sagemaker=self, logs=self, store=self, cloudwatch=self)  # type: ignore[arg-type]

    def moment(self) -> None:
        self._moment += 1
        if self._moment == self.kill_at:
            raise Killed

    def put(self, uri: str, content: bytes | Path, *, if_absent: bool = False, sha256: str = "") -> str:
        self.moment()
        if if_absent and uri in self.objects:
            raise Exists("PreconditionFailed", uri, "PutObject")
        self.objects[uri] = (content if isinstance(content, bytes) else content.read_bytes(), sha256)
        self.puts.append(uri)
        self.moment()
        return _etag(self.objects[uri])

    def copy(self, source: str, uri: str, *, size: int, etag: str) -> str:
        self.moment()
        if source not in self.objects or _etag(self.objects[source]) != etag:
            raise ApiError("PreconditionFailed", source, "CopyObject")
        self.objects[uri] = self.objects[source]
        self.copies.append(uri)
        self.moment()
        return _etag(self.objects[uri])

    def interrupt(self, wait_s: float) -> int:
        return 0

    def get(self, uri: str) -> bytes:
        self.gets.append(uri)
        if uri not in self.objects:
            raise NotFound("NoSuchKey", uri, "GetObject")
        return self.objects[uri][0]

    def hash_of(self, uri: str) -> KeptHash | None:
        self.asked.append(uri)
        return KeptHash(self.objects[uri][1], _etag(self.objects[uri])) if uri in self.objects else None

    def list(self, prefix: str) -> Iterator[StoredObject]:
        now = datetime.now(UTC)
        found = sorted((uri, each) for uri, each in tuple(self.objects.items()) if uri.startswith(prefix))
        for uri, each in found:
            yield StoredObject(uri, len(each[0]), _etag(each), now - self.ages.get(uri, timedelta(0)))

    def folders(self, prefix: str) -> Iterator[str]:
        below = {uri.removeprefix(prefix) for uri in tuple(self.objects) if uri.startswith(prefix)}
        yield from sorted({name.partition("/")[0] for name in below if "/" in name})

    def delete(self, uri: str) -> None:
        self.moment()
        self.objects.pop(uri, None)
        self.moment()

    def delete_all(self, uris: Sequence[str]) -> None:
        for uri in uris:
            self.delete(uri)

    def create_training_job(self, **request: Any) -> Mapping[str, Any]:
        self.moment()
        name = request["TrainingJobName"]
        if name in self.jobs:
            raise Exists("ResourceInUse", "Job name must be unique", "CreateTrainingJob")
        self.creates += 1
        self.jobs[name] = request
        self.moment()
        return {"TrainingJobArn": f"arn:{name}"}

    def describe_training_job(self, *, TrainingJobName: str) -> Mapping[str, Any]:
        if TrainingJobName not in self.jobs:
            raise NotFound("ValidationException", "Requested resource not found.", "DescribeTrainingJob")
        return {**self.jobs[TrainingJobName], "TrainingJobStatus": self.status, "CreationTime": datetime.now(UTC)}


def _etag(found: tuple[bytes, str]) -> str:
    return hashlib.md5(found[0]).hexdigest()
