"""Where the inputs of a job lie in S3. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from algorun_client.request.model import Json, Kind, TaskAddress
from algorun_client.submit.look_up.facts import Facts
from algorun_client.submit.look_up.left_by_tasks import left_by_task
from algorun_client.submit.read.spec import FileSystemSource, InputSpec, SourceKind, TaskSpec

from . import processing


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
        if each.file_system is not None:
            made.append(_mounted(each.name, each.file_system))
            continue
        uri, is_known = _uri(each, facts, address, folders)
        if not is_known:
            assumed.append(uri)
        made.append(
            _training(each, uri)
            if spec.kind is Kind.TRAINING
            else processing.input_of(each.name, uri, shard=each.shard)
        )
    return Sources(tuple(made), tuple(assumed))


def _training(each: InputSpec, uri: str) -> Json:
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


def _mounted(name: str, source: FileSystemSource) -> Json:
    """A channel whose folder the hosts mount. Read-only, because no fingerprint would show a change by a job."""
    return {
        "ChannelName": name,
        "DataSource": {
            "FileSystemDataSource": {
                "FileSystemId": source.identity,
                "FileSystemType": source.system.value,
                "DirectoryPath": source.folder,
                "FileSystemAccessMode": "ro",
            }
        },
        "InputMode": "File",
    }


def _uri(each: InputSpec, facts: Facts, address: TaskAddress, folders: Mapping[str, str]) -> tuple[str, bool]:
    """The address of an input, and True if it is known."""
    match each.kind:
        case SourceKind.FOLDER:
            return folders[each.name], True
        case SourceKind.S3:
            found = facts.sources.get(each.source)
            return (found.uri, True) if found else (each.source, False)
        case SourceKind.TASK:
            return left_by_task(each, facts.upstreams, address)
        case SourceKind.FILE_SYSTEM:
            raise ValueError(f"{each.source} does not lie in S3")
