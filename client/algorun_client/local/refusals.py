"""What SageMaker refuses at Create, and what the local target cannot do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from algorun.common.errors import UserError
from algorun_client.aws import service_model
from algorun_client.aws.api import ObjectStore
from algorun_client.aws.fields import Table, inner, number, required, tables, text, words
from algorun_client.common.errors import ApiError, NotFound
from algorun_client.request import limits
from algorun_client.request.model import Json, Kind

from . import job_description
from .folder_store import FolderStore
from .job_description import MountedFolder

MOST_HOSTS = 64  # on one machine, as of `algorun simulate`
# This machine needs neither: a request for it may leave them out, or say anything.
NOT_NEEDED = frozenset({"RoleArn", "TrainingImage", "ImageUri", "InstanceType", "VolumeSizeInGB"})


def check(kind: Kind, request: Table, *, strict: bool) -> None:
    """Raises ApiError for what SageMaker refuses by the request alone. `strict`: also without role, image and instance."""
    broken = limits.violations(service_model.input_shape(kind), cast("dict[str, Json]", dict(request)))
    found = [
        f"Value at '{each.path}' failed to satisfy constraint: {each.what}; allowed: {each.allowed}"
        for each in broken
        if strict or each.path.rsplit(".", 1)[-1] not in NOT_NEEDED
    ]
    if found:
        raise invalid(
            kind, f"{len(found)} validation error{'s' if len(found) > 1 else ''} detected: {'; '.join(found)}"
        )
    for contradiction in _contradictions(kind, request):
        raise invalid(kind, contradiction)


def invalid(kind: Kind, message: str) -> ApiError:
    """SageMaker's error for a request that it cannot accept."""
    return ApiError("ValidationException", message, service_model.OPERATIONS[kind])


def check_local(kind: Kind, request: Table, *, needs_program: bool) -> None:
    """Raises UserError for what SageMaker can do and the local target cannot. `needs_program`: no image has one."""
    folders = [text(inner(request, key), "LocalPath") for key in ("CheckpointConfig", "TensorBoardOutputConfig")]
    folders += [text(inner(each, "S3Input"), "LocalPath") for each in tables(request, "ProcessingInputs")]
    folders += [text(inner(each, "S3Output"), "LocalPath") for each in _outputs(request)]
    for folder in folders:
        if folder and (not folder.startswith("/opt/ml/") or ".." in folder.split("/")):
            raise UserError("LocalPath", f"{folder!r}: hosts on this machine have /opt/ml alone", allowed="/opt/ml/..")
    hosts = job_description.cluster(kind, request).hosts
    if len(hosts) > MOST_HOSTS:
        raise UserError("--hosts", f"{len(hosts)} are too many for one machine", allowed=f"up to {MOST_HOSTS}")
    program = inner(request, "AppSpecification")
    if needs_program and kind is Kind.PROCESSING and not words(program, "ContainerEntrypoint"):
        raise UserError("ContainerEntrypoint", "is missing; on this machine no image has one", fix="name the program")


def check_inputs(kind: Kind, request: Table, store: ObjectStore, file_systems: Path) -> None:
    """Raises UserError for a bucket or a file system without a folder, or for an input that only AWS has; ApiError for an
    input without objects. `file_systems`: the folder with one folder for each file system."""
    for name, mounted in _mounted(kind, request):
        folder = file_systems / mounted.path
        if ".." in mounted.path.split("/"):
            raise UserError(f"input {name}", f"DirectoryPath leads out of {mounted.path}", fix="write it without ..")
        if not folder.is_dir():
            raise UserError(
                f"input {name}",
                f"on this machine the file system is the folder {folder}, which does not exist",
                fix=f"make a link: mkdir -p {folder.parent} && ln -s DATA {folder}; or name a local folder as the source",
            )
    for name, source in _sources(kind, request):
        where = f"input {name}"
        if not source:
            raise UserError(
                where, "is no data of S3", allowed="s3://..", fix="copy the data to a local folder and name that"
            )
        data_type = required(source, "S3DataType")
        if data_type not in ("S3Prefix", "ManifestFile"):
            raise UserError(
                where,
                f"S3DataType {data_type} needs AWS",
                allowed="S3Prefix, ManifestFile",
                fix="--where aws",
            )
        uri = required(source, "S3Uri")
        if isinstance(store, FolderStore) and not store.has_bucket(uri):
            folder = store.path(uri.split("/", 3)[0] + "//" + uri.split("/", 3)[2])
            raise UserError(
                where,
                f"{uri}: on this machine the bucket is the folder {folder}, which does not exist",
                fix=f"copy the data or make a link: ln -s DATA {folder}; or name a local folder as the source",
            )
        try:
            empty = next(iter(store.list(uri)), None) is None
        except NotFound:
            empty = True
        if empty:
            raise invalid(
                kind,
                f'No S3 objects found under S3 URL "{uri}" given in input data source. Please ensure that the bucket exists in '
                "the selected region, that objects exist under that S3 prefix, and that the role has s3:ListBucket permissions.",
            )


def _mounted(kind: Kind, request: Table) -> Iterator[tuple[str, MountedFolder]]:
    """The inputs of a training job that are file systems. A processing job has none."""
    for channel in tables(request, "InputDataConfig") if kind is Kind.TRAINING else ():
        if source := inner(inner(channel, "DataSource"), "FileSystemDataSource"):
            yield required(channel, "ChannelName"), job_description.mounted_folder(source)


def _sources(kind: Kind, request: Table) -> Iterator[tuple[str, Table]]:
    """The name of each input that is no file system, and where in S3 its data are, {} for data elsewhere."""
    mode = text(inner(request, "AlgorithmSpecification"), "TrainingInputMode")
    for channel in tables(request, "InputDataConfig") if kind is Kind.TRAINING else ():
        name = required(channel, "ChannelName")
        if "Pipe" in (text(channel, "InputMode"), mode):
            raise UserError(f"input {name}", "Pipe mode needs AWS", allowed="File, FastFile", fix="--where aws")
        source = inner(channel, "DataSource")
        if not inner(source, "FileSystemDataSource"):
            yield name, inner(source, "S3DataSource")
    for each in tables(request, "ProcessingInputs") if kind is Kind.PROCESSING else ():
        yield required(each, "InputName"), inner(each, "S3Input")


def _outputs(request: Table) -> Sequence[Table]:
    return tables(inner(request, "ProcessingOutputConfig"), "Outputs")


def _contradictions(kind: Kind, request: Table) -> Iterator[str]:
    """What the description of the service does not say."""
    condition = inner(request, "StoppingCondition")
    most_run, most_wait = number(condition, "MaxRuntimeInSeconds"), number(condition, "MaxWaitTimeInSeconds")
    if kind is Kind.TRAINING:
        names = [required(each, "ChannelName") for each in tables(request, "InputDataConfig")]
        resources = inner(request, "ResourceConfig")
        if resources.get("InstanceGroups") and resources.get("InstanceCount"):
            yield "InstanceGroups cannot be combined with InstanceCount and InstanceType"
        if not resources.get("InstanceGroups") and not resources.get("InstanceCount"):
            yield "ResourceConfig needs InstanceCount and InstanceType, or InstanceGroups"
        if request.get("EnableManagedSpotTraining") and most_wait is None:
            yield "MaxWaitTimeInSeconds must be provided when EnableManagedSpotTraining is true"
        if most_wait is not None and not request.get("EnableManagedSpotTraining"):
            yield "MaxWaitTimeInSeconds can only be provided when EnableManagedSpotTraining is true"
    else:
        names = [required(each, "InputName") for each in tables(request, "ProcessingInputs")]
        names += [required(each, "OutputName") for each in _outputs(request)]
    if len(set(names)) < len(names):
        yield f"names of inputs and outputs must be unique: {', '.join(names)}"
    if most_run is not None and most_wait is not None and most_wait < most_run:
        yield f"Invalid MaxWaitTimeInSeconds. It must be present and be greater than or equal to MaxRuntimeInSeconds ({most_run})"
