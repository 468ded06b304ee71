"""The facts of a request: what AWS, or the folders of the local target, know. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from algorun.common import REQUEST_FORMAT
from algorun.common.errors import UserError
from algorun_client.aws.api import ObjectStore
from algorun_client.common import settings
from algorun_client.common.codes import ClientCode
from algorun_client.common.errors import ApiError, NotFound
from algorun_client.common.refusals import Refusal, Unanswered, explained, refusal
from algorun_client.connection import Site
from algorun_client.request.model import TaskAddress
from algorun_client.submit.read.source_tasks import Reading
from algorun_client.submit.read.spec import SourceKind, TaskSpec

from . import network
from .facts import Facts, Listed, Upstream
from .input_contents import read_contents
from .left_by_tasks import left_by_task
from .upstreams import read_upstreams

if TYPE_CHECKING:
    from algorun_client.aws.aws_session import AwsSession
    from algorun_client.local import DockerEngine

LABEL = "org.algorun.request-format"
LOCAL_ROLE = "arn:aws:iam::000000000000:role/local"  # no one checks it, but the request has the shape of a real one


def look_up(spec: TaskSpec, reading: Reading, connection: Site, environ: Mapping[str, str]) -> Facts:
    """All facts of a task. `reading`: what is known of other tasks.

    Raises UserError: role, image, data or upstream task does not exist; 71 without rights.
    """
    target, session = connection.target, connection.session
    bucket, store = spec.bucket or connection.default_bucket(), target.store
    sources = {
        each.source: _listed(store, each.source, each.where, spec.resources.all_hosts)
        for each in spec.inputs
        if each.kind is SourceKind.S3
    }
    upstreams, values = read_upstreams(target, spec, bucket, replace(reading, grace_s=connection.pace.grace_s))
    sources |= dict(_left(store, spec, upstreams, bucket, reading.later))
    contents, unread = read_contents(store, spec, bucket, {source: each.uri for source, each in sources.items()})
    if session is None:
        role_arn = spec.role if spec.role.startswith("arn:") else LOCAL_ROLE
        image, image_format, image_id = _image_here(connection.engine, spec.image)
    else:
        image, image_format, image_id = _image_of_registry(session, spec.image)
        role_arn = session.role_arn(spec.role or settings.ROLE.read(environ))
        network.check(spec, session)
        if spec.bucket:
            from algorun_client.aws import account

            account.check_region(session, spec.bucket)
    return Facts(
        role_arn=role_arn,
        bucket=bucket,
        image=image,
        image_format=image_format,
        image_id=image_id,
        sources=sources,
        upstreams=upstreams,
        values=values,
        contents=contents,
        unread=unread,
    )


def _image_here(engine: DockerEngine | None, image: str) -> tuple[str | None, int | None, str]:
    """An image of this machine: its name, the format that its launcher reads, and its ID. Simulated hosts have none.

    Raises UserError if there is none of this name.
    """
    if engine is None:
        return image, REQUEST_FORMAT, ""
    if not image:
        raise UserError("--docker", "no image is named", fix="--image algorun:cpu, or `image` in the job file")
    own = engine.image(image)
    return image, read_format(own.labels), own.identity


def read_format(labels: Mapping[str, str]) -> int:
    """The highest request format that an image reads, as its label says. 0 without a label."""
    label = labels.get(LABEL, "0")
    return int(label) if label.isdigit() else 0


def _image_of_registry(session: AwsSession, image: str) -> tuple[str | None, int | None, str]:
    """The image with its digest, so that a tag that moves changes nothing, and the format that its launcher reads.

    The image of another registry, or of one that this caller may not read, stays as it is. It has no ID beside its digest.
    """
    if not image:
        return None, None, ""
    try:
        digest = session.image_digest(image)
        if digest is None:
            return image, None, ""
        image_format = read_format(session.image_labels(image))
    except UserError as error:
        if error.code != ClientCode.CREDENTIALS or isinstance(error, Unanswered):
            raise
        return image, None, ""
    name = image.partition("@")[0]
    folder, _, last = name.rpartition("/")
    return f"{folder}/{last.partition(':')[0]}@{digest}", image_format, ""


def _listed(store: ObjectStore, source: str, where: str, hosts: int) -> Listed:
    """What an s3:// source names: one object, the objects of a folder, or those whose keys begin so.

    Counts as many as there are hosts: more are not needed to know that sharding makes sense.
    """
    try:
        if source.endswith("/"):
            return Listed(uri=source, objects=_count(store, source, hosts))
        first = next(iter(store.list(source)), None)
        if first is not None and first.uri == source:
            return Listed(uri=source, objects=1)
        if (inside := _count(store, f"{source}/", hosts)) > 0:
            return Listed(uri=f"{source}/", objects=inside)
        return Listed(uri=source, objects=_count(store, source, hosts))
    except NotFound as error:
        raise UserError(
            where, f"{source}: {error.message or 'there is no such bucket'}", fix="check bucket, key and --region"
        ) from None
    except ApiError as error:
        if refusal(error) is Refusal.DENIED:
            return _unlisted(store, source, where, hosts, error)
        raise explained(error) from None


def _left(
    store: ObjectStore, spec: TaskSpec, upstreams: Mapping[str, Upstream], bucket: str, later: Collection[str]
) -> Iterator[tuple[str, Listed]]:
    """What other tasks have left, by its source; not what tasks will leave that run `later`. Raises UserError."""
    address = TaskAddress(bucket=bucket, project=spec.project, task=spec.task, prefix=spec.prefix)
    for each in spec.inputs:
        if each.task is None or each.task.task in later:
            continue
        uri, is_known = left_by_task(each, upstreams, address)
        if is_known:
            yield each.source, _listed(store, uri, each.where, spec.resources.all_hosts)


def _unlisted(store: ObjectStore, source: str, where: str, hosts: int, denied: ApiError) -> Listed:
    """A source that the caller may not list; the job's role may. Without a list nobody knows how many objects there are."""
    if source.endswith("/"):
        return Listed(uri=source, objects=hosts)
    try:
        if store.hash_of(source) is not None:
            return Listed(uri=source, objects=1)
    except ApiError:
        pass
    raise UserError(
        where,
        f"{source}: {denied}; whether it is a folder is therefore unknown",
        fix=f"{source}/ for a folder, or ask for s3:ListBucket on its bucket",
        code=ClientCode.CREDENTIALS,
    )


def _count(store: ObjectStore, prefix: str, most: int) -> int:
    """The number of objects below a prefix, at most `most`. A key that ends with a slash only stands for a folder."""
    return sum(1 for _ in islice((each for each in store.list(prefix) if not each.uri.endswith("/")), most))
