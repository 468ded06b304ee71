"""A request as the runner needs it, of either kind of job. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from algorun_client.aws.fields import Table, inner, number, required, tables, text, texts, words
from algorun_client.aws.job_state import tensorboard_folder
from algorun_client.request.model import Kind

BASE = "/opt/ml"
ONE_GROUP = "homogeneousCluster"  # the name that SageMaker gives to hosts without groups


@dataclass(frozen=True, slots=True)
class MountedFolder:
    """A folder of EFS or FSx, for which a folder of this machine stands."""

    path: str  # ID/FOLDER, below the folder of all file systems
    read_only: bool


@dataclass(frozen=True, slots=True)
class LocalInput:
    """A channel of a training job, or an input of a processing job."""

    name: str
    uri: str  # "" if it is mounted
    folder: str  # below the host's /opt/ml
    shard: bool = False  # each host gets some of the objects
    link: bool = False  # FastFile
    manifest: bool = False
    hosts: tuple[str, ...] | None = None  # None: all
    mounted: MountedFolder | None = None


@dataclass(frozen=True, slots=True)
class Synced:
    """A folder of every host that is copied to S3 while the job runs, and at its end."""

    uri: str  # a prefix that ends with a slash
    folder: str  # below the host's /opt/ml
    restore: bool = False  # the objects are copied to the hosts first
    during: bool = True


@dataclass(frozen=True, slots=True)
class JobHosts:
    """The hosts of each instance group, and the instance type of each host."""

    groups: Mapping[str, tuple[str, ...]]
    instance: Mapping[str, str]

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts, in their order."""
        return tuple(host for members in self.groups.values() for host in members)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProgram:
    """What each host runs."""

    image: str
    entrypoint: tuple[str, ...]  # (): that of the image
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    hyperparameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> tuple[str, ...]:
        """Entrypoint and arguments; () is the launcher's own: algorun train."""
        return (*self.entrypoint, *self.arguments)


@dataclass(frozen=True, slots=True)
class Artifacts:
    """Where model.tar.gz and output.tar.gz go; files by themselves, if they are not to be compressed."""

    prefix: str = ""  # without a slash at its end
    compress: bool = True


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """How long a job may run, and how long it may wait and run together. Seconds; None: any time."""

    run_s: int | None = None
    wait_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDescription:
    """What is to be run, and what it needs."""

    kind: Kind
    job: str
    cluster: JobHosts
    program: HostProgram
    is_isolated: bool = False  # the hosts reach nothing but each other
    inputs: tuple[LocalInput, ...] = ()
    synced: tuple[Synced, ...] = ()
    artifacts: Artifacts = Artifacts()
    limits: TimeLimits = TimeLimits()


def described(kind: Kind, request: Table) -> JobDescription:
    """Reads a request of CreateTrainingJob or CreateProcessingJob. `refusals` has checked it."""
    return _training(request) if kind is Kind.TRAINING else _processing(request)


def cluster(kind: Kind, request: Table) -> JobHosts:
    """The hosts that a request asks for."""
    resources = inner(request, "ResourceConfig" if kind is Kind.TRAINING else "ProcessingResources")
    return _cluster(resources if kind is Kind.TRAINING else inner(resources, "ClusterConfig"))


def _training(request: Table) -> JobDescription:
    algorithm, out = inner(request, "AlgorithmSpecification"), inner(request, "OutputDataConfig")
    hosts = cluster(Kind.TRAINING, request)
    checkpoints = inner(request, "CheckpointConfig")
    job = required(request, "TrainingJobName")
    mode = required(algorithm, "TrainingInputMode")
    synced: tuple[Synced, ...] = ()
    if checkpoints:
        folder = _below(text(checkpoints, "LocalPath") or f"{BASE}/checkpoints")
        synced = (Synced(_folder(required(checkpoints, "S3Uri")), folder, restore=True),)
    if uri := tensorboard_folder(request, job):
        path = text(inner(request, "TensorBoardOutputConfig"), "LocalPath") or f"{BASE}/output/tensorboard"
        synced += (Synced(uri, _below(path)),)
    return JobDescription(
        kind=Kind.TRAINING,
        job=job,
        cluster=hosts,
        program=HostProgram(
            image=text(algorithm, "TrainingImage"),
            entrypoint=words(algorithm, "ContainerEntrypoint"),
            arguments=words(algorithm, "ContainerArguments"),
            environment=texts(request, "Environment"),
            hyperparameters=texts(request, "HyperParameters"),
        ),
        is_isolated=bool(request.get("EnableNetworkIsolation")),
        inputs=tuple(_channel(each, mode, hosts) for each in tables(request, "InputDataConfig")),
        synced=synced,
        artifacts=Artifacts(
            prefix=f"{required(out, 'S3OutputPath').rstrip('/')}/{job}/output",
            compress=text(out, "CompressionType") != "NONE",
        ),
        limits=_limits(request),
    )


def _limits(request: Table) -> TimeLimits:
    condition = inner(request, "StoppingCondition")
    return TimeLimits(number(condition, "MaxRuntimeInSeconds"), number(condition, "MaxWaitTimeInSeconds"))


def _cluster(resources: Table) -> JobHosts:
    groups: dict[str, tuple[str, ...]] = {}
    instance: dict[str, str] = {}
    for each in tables(resources, "InstanceGroups") or (resources,):
        first = len(instance) + 1
        members = tuple(f"algo-{at}" for at in range(first, first + (number(each, "InstanceCount") or 0)))
        groups[text(each, "InstanceGroupName") or ONE_GROUP] = members
        instance |= dict.fromkeys(members, text(each, "InstanceType"))
    return JobHosts(groups, instance)


def _channel(channel: Table, mode: str, all_hosts: JobHosts) -> LocalInput:
    name = required(channel, "ChannelName")
    if file_system := inner(inner(channel, "DataSource"), "FileSystemDataSource"):
        return LocalInput(name=name, uri="", folder=f"input/data/{name}", mounted=mounted_folder(file_system))
    source = inner(inner(channel, "DataSource"), "S3DataSource")
    names = words(source, "InstanceGroupNames")
    return LocalInput(
        name=name,
        uri=required(source, "S3Uri"),
        folder=f"input/data/{name}",
        shard=text(source, "S3DataDistributionType") == "ShardedByS3Key",
        link=(text(channel, "InputMode") or mode) == "FastFile",
        manifest=text(source, "S3DataType") == "ManifestFile",
        hosts=tuple(host for name in names for host in all_hosts.groups[name]) if names else None,
    )


def mounted_folder(source: Table) -> MountedFolder:
    """What a FileSystemDataSource names."""
    parts = [part for part in required(source, "DirectoryPath").split("/") if part]
    path = "/".join([required(source, "FileSystemId"), *parts])
    return MountedFolder(path, read_only=required(source, "FileSystemAccessMode") == "ro")


def _processing(request: Table) -> JobDescription:
    program = inner(request, "AppSpecification")
    outputs = [inner(each, "S3Output") for each in tables(inner(request, "ProcessingOutputConfig"), "Outputs")]
    return JobDescription(
        kind=Kind.PROCESSING,
        job=required(request, "ProcessingJobName"),
        cluster=cluster(Kind.PROCESSING, request),
        program=HostProgram(
            image=text(program, "ImageUri"),
            entrypoint=words(program, "ContainerEntrypoint"),
            arguments=words(program, "ContainerArguments"),
            environment=texts(request, "Environment"),
        ),
        is_isolated=bool(inner(request, "NetworkConfig").get("EnableNetworkIsolation")),
        inputs=tuple(_processing_input(each) for each in tables(request, "ProcessingInputs")),
        synced=tuple(
            Synced(
                _folder(required(each, "S3Uri")),
                _below(required(each, "LocalPath")),
                during=text(each, "S3UploadMode") == "Continuous",
            )
            for each in outputs
            if each
        ),
        limits=_limits(request),
    )


def _processing_input(each: Table) -> LocalInput:
    source = inner(each, "S3Input")
    return LocalInput(
        name=required(each, "InputName"),
        uri=required(source, "S3Uri"),
        folder=_below(required(source, "LocalPath")),
        shard=text(source, "S3DataDistributionType") == "ShardedByS3Key",
        manifest=text(source, "S3DataType") == "ManifestFile",
    )


def _folder(uri: str) -> str:
    return f"{uri.rstrip('/')}/"


def _below(path: str) -> str:
    """The part of a path below /opt/ml. `refusals` lets no other path through."""
    return path.removeprefix(BASE).strip("/")


OPT_ML = re.compile(r"""(?<![^=:,"' \[])/opt/ml(?=/|["', \]:]|$)""")  # as a path of its own, or after `--data=`


def local_text(text: str, base: Path) -> str:
    """A word, or a list of words as JSON, with paths below /opt/ml as paths below `base`: what the host has instead."""
    return OPT_ML.sub(str(base).replace("\\", r"\\"), text)
