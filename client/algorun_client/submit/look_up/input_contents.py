"""What the inputs in S3 hold: the key, size and ETag of each object. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from algorun_client.aws.addresses import below
from algorun_client.aws.api import ObjectStore
from algorun_client.common.errors import ApiError, NotFound
from algorun_client.common.refusals import Refusal, explained, refusal
from algorun_client.request import fingerprint
from algorun_client.request.model import TaskAddress
from algorun_client.submit.read.spec import SourceKind, TaskSpec

MOST_OBJECTS = 200_000  # of one input: 200 calls, some 20 s


class _TooMany(Exception):
    """The list is longer than anybody wants to wait for."""


def read_contents(
    store: ObjectStore, spec: TaskSpec, bucket: str, uris: Mapping[str, str]
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """For each input in S3, by its source: the rows of its objects, or why they are not known.

    `uris`: what each s3:// source stands for. What a completed job has left is not read: the job says enough.
    """
    contents: dict[str, dict[str, str]] = {}
    unread: dict[str, str] = {}
    for each in spec.inputs:
        uri = uris.get(each.source, "") if each.kind is SourceKind.S3 else ""
        if each.task is not None and each.task.what == "state":
            address = TaskAddress(bucket=bucket, project=spec.project, task=each.task.task, prefix=spec.prefix)
            uri = f"{address.state}{each.task.sub}/" if each.task.sub else address.state
        if not uri:
            continue
        try:
            contents[each.source] = fingerprint.rows(_objects(store, uri))
        except _TooMany:
            unread[each.source] = f"has more than {MOST_OBJECTS} objects, which are not compared"
        except NotFound:
            contents[each.source] = {}
        except ApiError as error:
            if refusal(error) is not Refusal.DENIED:
                raise explained(error) from None
            unread[each.source] = "may not be listed, so nobody knows whether it has changed"
    return contents, unread


def _objects(store: ObjectStore, uri: str) -> Iterator[tuple[str, str]]:
    """The name below the address, and size and ETag, of each object."""
    for count, each in enumerate(store.list(uri)):
        if count == MOST_OBJECTS:
            raise _TooMany
        if not each.uri.endswith("/"):
            yield below(each.uri, uri), f"{each.size} {each.etag}"
