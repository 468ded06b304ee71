"""The calls that the client makes. boto3's clients (through `aws`) and `algorun_client.local` both answer them.

Arguments and answers have SageMaker's own names and shapes, so that one request means the same in both places, and a
server over `local` can speak to boto3. A refused call raises `ApiError`: `NotFound`, `Exists`, or another code of AWS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeAlias

# Each answer is read in one place, with `fields`, and becomes a type there (job_state and the like).
Answer: TypeAlias = Mapping[str, object]


class SageMakerApi(Protocol):
    """Jobs. Names and shapes of arguments: the AWS API reference."""

    def create_training_job(self, **request: object) -> Answer:
        """Raises Exists if the name is in use."""
        ...

    def create_processing_job(self, **request: object) -> Answer:
        """As create_training_job."""
        ...

    def describe_training_job(self, *, TrainingJobName: str) -> Answer:
        """Raises NotFound."""
        ...

    def describe_processing_job(self, *, ProcessingJobName: str) -> Answer:
        """As describe_training_job."""
        ...

    def stop_training_job(self, *, TrainingJobName: str) -> Answer:
        """Asks for a stop; the job ends later. Raises NotFound, or ApiError if it has ended already."""
        ...

    def stop_processing_job(self, *, ProcessingJobName: str) -> Answer:
        """As stop_training_job."""
        ...

    def list_training_jobs(self, **query: object) -> Answer:
        """NameContains, MaxResults, NextToken, SortBy, SortOrder, StatusEquals."""
        ...

    def list_processing_jobs(self, **query: object) -> Answer:
        """As list_training_jobs."""
        ...


class LogsApi(Protocol):
    """CloudWatch Logs, for the groups /aws/sagemaker/TrainingJobs and /aws/sagemaker/ProcessingJobs."""

    def describe_log_streams(self, **query: object) -> Answer:
        """logGroupName, logStreamNamePrefix, nextToken; at most 50 streams a page. Raises NotFound before the group exists."""
        ...

    def get_log_events(self, **query: object) -> Answer:
        """logGroupName, logStreamName, startFromHead, nextToken: events of {timestamp, ingestionTime, message}."""
        ...


class CloudWatchApi(Protocol):
    """What CloudWatch measured on the hosts of jobs."""

    def get_metric_data(self, **query: object) -> Answer:
        """MetricDataQueries (at most 500), StartTime (inclusive), EndTime (exclusive), ScanBy, NextToken."""
        ...


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as a listing shows it."""

    uri: str
    size: int  # bytes
    etag: str
    modified: datetime  # with a time zone


@dataclass(frozen=True, slots=True)
class KeptHash:
    """What an object itself tells of its content."""

    sha256: str  # hexadecimal, as `put` got it; "" if another client wrote the object
    etag: str  # of the same version of the object


class ObjectStore(Protocol):
    """S3, or folders that stand for its buckets. Every address is s3://BUCKET/KEY."""

    def put(self, uri: str, content: bytes | Path, *, if_absent: bool = False, sha256: str = "") -> str:
        """Writes an object, whole or not at all. `if_absent`: raises Exists if there is one already.

        `sha256` is kept with the object; `hash_of` returns it. Raises Changed if a file holds something else: what is sent
        is hashed on its way, so that no object ever has another content than its hash says. Returns the ETag of what was
        written, "" if that is unknown.
        """
        ...

    def copy(self, source: str, uri: str, *, size: int, etag: str) -> str:
        """Makes `uri` an object like `source`, without a way over this machine. Returns its ETag, "" if that is unknown.

        Raises ApiError if `source`, which had this size and ETag, is another object now or none.
        """
        ...

    def interrupt(self, wait_s: float) -> int:
        """Ends every `put` and `copy` under way soon, with an error and without an object. The store takes no more.

        Returns how many objects may have left parts in the bucket: their removal has taken longer than `wait_s`.
        """
        ...

    def get(self, uri: str) -> bytes:
        """The content of a small object. Raises NotFound."""
        ...

    def download(self, uri: str, path: Path, moved: Callable[[int], None] | None = None) -> None:
        """Writes an object to a file, aside and renamed. Raises NotFound.

        `moved` is called with the bytes that have come, from several threads; with fewer than none for what comes again.
        """
        ...

    def hash_of(self, uri: str) -> KeptHash | None:
        """What `put` kept; None without an object."""
        ...

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """All objects whose address begins with `prefix`, in the order of their keys (bytes of UTF-8)."""
        ...

    def folders(self, prefix: str) -> Iterator[str]:
        """The names directly below `prefix`, which ends with a slash, that stand for folders. Lists nothing inside them."""
        ...

    def delete(self, uri: str) -> None:
        """Removes an object; no error if there is none."""
        ...

    def delete_all(self, uris: Sequence[str]) -> None:
        """Removes objects of one bucket, in S3 by a call for a thousand. Raises ApiError for the first that is refused."""
        ...


class Target(Protocol):
    """Where jobs run. The parts may be made when they are first used."""

    @property
    def name(self) -> str:
        """ "aws" or "local"."""
        ...

    @property
    def sagemaker(self) -> SageMakerApi: ...

    @property
    def logs(self) -> LogsApi: ...

    @property
    def store(self) -> ObjectStore: ...

    @property
    def cloudwatch(self) -> CloudWatchApi: ...


@dataclass(frozen=True, slots=True)
class ReadyTarget:
    """A Target whose parts exist."""

    name: str
    sagemaker: SageMakerApi
    logs: LogsApi
    store: ObjectStore
    cloudwatch: CloudWatchApi
