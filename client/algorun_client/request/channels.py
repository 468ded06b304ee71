"""Where the inputs of a job lie in S3. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from algorun.common.errors import UserError

from . import processing
from .facts import Facts, Upstream
from .model import Json, Kind, TaskAddress
from .spec import Input, SourceKind, TaskSpec


@dataclass(frozen=True, slots=True)
class Sources:
    """The inputs as SageMaker's arguments, and the addresses among them that had to be assumed."""

    inputs: tuple[Json, ...]
    assumed: tuple[str, ...]


def sources(spec: TaskSpec, facts: Facts, address: TaskAddress, folders: Mapping[str, str]) -> Sources:
    """InputDataConfig or ProcessingInputs, without the code. `folders`: where each local input will lie.

    Raises UserError.
    """
    made: list[Json] = []
    assumed: list[str] = []
    for each in spec.inputs:
        uri, is_known = _uri(each, facts, address, folders)
        if not is_known:
            assumed.append(uri)
        made.append(
            _training(each, uri)
            if spec.kind is Kind.TRAINING
            else processing.input_of(each.name, uri, shard=each.shard)
        )
    return Sources(tuple(made), tuple(assumed))


def _training(each: Input, uri: str) -> Json:
    source: Json = {
        "S3DataType": "S3Prefix",
        "S3Uri": uri,
        "S3DataDistributionType": "ShardedByS3Key" if each.shard else "FullyReplicated",
    }
    return {
        "ChannelName": each.name,
        "DataSource": {"S3DataSource": source},
        "InputMode": "FastFile" if each.fastfile else "File",
    }


def _uri(each: Input, facts: Facts, address: TaskAddress, folders: Mapping[str, str]) -> tuple[str, bool]:
    """The address of an input, and True if it is known."""
    match each.kind:
        case SourceKind.FOLDER:
            return folders[each.name], True
        case SourceKind.S3:
            found = facts.sources.get(each.source)
            return (found.uri, True) if found else (each.source, False)
        case SourceKind.TASK:
            return left_by_task(each, facts.upstreams, address)


def left_by_task(each: Input, upstreams: Mapping[str, Upstream], address: TaskAddress) -> tuple[str, bool]:
    """Where a task keeps what `each` reads, and True if that is known. `address`: of the task that reads.

    Raises UserError if such a task never leaves it.
    """
    source = each.task
    assert source is not None
    upstream = upstreams.get(source.task) if source.what != "state" else None
    task = upstream.task if upstream and upstream.task else source.task
    other = TaskAddress(bucket=address.bucket, project=address.project, task=task, prefix=address.prefix)
    below = f"{source.sub}/" if source.sub else ""
    if source.what == "state":
        return f"{other.state}{below}", True
    if upstream is None:
        return f"{other.output(1)}/{below}", False
    if upstream.kind is Kind.TRAINING:
        return _of_training(each, other, upstream), True
    if source.what == "model":
        raise UserError(
            each.where,
            f"task {source.task!r} is a processing task: it leaves no model",
            fix=f"task:{source.task}/output",
        )
    return f"{other.output(upstream.number)}/{below}", True


def _of_training(each: Input, other: TaskAddress, upstream: Upstream) -> str:
    """SageMaker packs what a training job leaves into one archive."""
    source = each.task
    assert source is not None
    if source.sub:
        raise UserError(
            each.where,
            f"{source.sub!r} lies inside an archive: {source.task!r} is a training task",
            fix=f"{each.name}=task:{source.task}/{source.what},extract",
        )
    return f"{other.output(upstream.number)}/{upstream.job}/output/{source.what}.tar.gz"
