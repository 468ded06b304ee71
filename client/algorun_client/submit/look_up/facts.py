"""What had to be looked up before a request can be complete. A dry run without credentials knows none of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from algorun_client.request.model import Kind
from algorun_client.submit.read.source_tasks import Reference

# Stand for a value that only AWS knows; the paths of the fields that hold one are in Request.unknown.
UNKNOWN_ROLE, UNKNOWN_BUCKET = "<role>", "<bucket>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What an s3:// source of an input names."""

    uri: str  # as it is sent: with a slash at its end if it is a folder, so that no neighbour is meant
    objects: int  # their number; at most the number of hosts is counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The newest completed execution of another task."""

    kind: Kind
    number: int
    job: str
    fingerprint: str = ""  # "": nobody knows what made it
    task: str = ""  # whose execution that is: of a sweep the best point's; "" for the task itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Values from AWS, or from the folders that stand for it. None: not looked up."""

    role_arn: str | None = None
    bucket: str | None = None
    image: str | None = None  # with its digest, if it could be read
    image_format: int | None = None  # the highest request format that the image's label names, 0 without a label
    sources: Mapping[str, Listed] = field(default_factory=dict)  # by the s3:// source as it was given
    upstreams: Mapping[str, Upstream] = field(default_factory=dict)  # by task
    # What lies in S3 below each s3:// source and each task:TASK/state, by the source: `fingerprint.rows` of the keys.
    contents: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)  # why a source is not in `contents`
    image_id: str = ""  # of an image of this machine: its name says nothing of its content
    values: Mapping[Reference, str] = field(default_factory=dict)  # of metrics of other tasks
