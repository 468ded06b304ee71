"""What a user asks for: one task, from the job file and the flags; typed and frozen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from algorun_client.request.model import Kind

STATE = "state"  # `--cwd state`: the task's checkpoint folder
TASK_VALUE = "{task:"  # begins a value of another task in a text


class Where(StrEnum):
    """Where a job runs."""

    AWS = "aws"
    LOCAL = "local"  # on this machine


class SourceKind(StrEnum):
    """What an input is made of."""

    S3 = "s3"
    TASK = "task"  # something that another task of the project left
    FOLDER = "folder"  # a folder or file of this machine
    FILE_SYSTEM = "file system"  # a folder of EFS or of FSx for Lustre, which the hosts mount


class FileSystem(StrEnum):
    """The file systems that a training job can mount, by SageMaker's names."""

    EFS = "EFS"
    FSX = "FSxLustre"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSource:
    """`task:TASK/model`, `task:TASK/output/SUB`, `task:TASK/state`."""

    task: str
    what: str  # "model", "output" or "state"
    sub: str = ""  # a folder below, without slashes at its ends


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemSource:
    """`efs:fs-ID/FOLDER`, `fsx:fs-ID/MOUNT_NAME/FOLDER`."""

    system: FileSystem
    identity: str  # fs-..
    folder: str  # begins with a slash; with FSx its first name is the mount name


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """An input channel."""

    name: str
    where: str  # the option or key that asks for it
    kind: SourceKind
    source: str  # s3://BUCKET/KEY, task:TASK/WHAT, efs:.., fsx:.., or an absolute path of this machine
    task: TaskSource | None = None
    file_system: FileSystemSource | None = None
    shard: bool = False  # each host gets other objects
    fastfile: bool = False  # files are read from S3 when they are opened; otherwise all are copied before the start
    extract: bool = False  # tar and zip files are unpacked before the ranks start


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceGroup:
    """`--instance-group NAME=TYPExN`."""

    name: str
    instance: str
    hosts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostChoice:
    """One of several kinds of hosts, in order of preference: `TYPExN` of --instance."""

    instance: str
    hosts: int

    @property
    def text(self) -> str:
        """`2 x ml.g5.12xlarge`."""
        return f"{self.hosts} x {self.instance}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What the ranks run: a program with its arguments, a module (-m), or a shell's command line."""

    name: str = ""  # of the program or module
    args: tuple[str, ...] = ()
    module: bool = False
    shell: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """How the launcher starts the ranks; None, "" or False: the launcher decides."""

    engine: str = ""
    slots: int | None = None
    per_host: bool = False
    per_gpu: bool = False
    share_nothing: bool = False
    restarts: int | None = None
    hold_s: int | None = None  # how long hosts stay after a failure
    cwd: str = ""  # relative to the code; "state" stands for the checkpoint folder


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSpec:
    """The hosts of a job, and how long they may run."""

    instance: str = ""
    hosts: int = 1
    others: tuple[HostChoice, ...] = ()  # instead of these, where there is no room for them
    first: HostChoice | None = None  # what was asked for first, where these are the hosts instead of it
    groups: tuple[InstanceGroup, ...] = ()  # instead of `instance` and `hosts`
    volume_gb: int | None = None
    spot: bool = False
    max_run_s: int
    max_wait_s: int | None = None  # of spot: waiting and running together
    retries: int | None = None  # of the whole job, after an error of SageMaker's own
    keep_alive_s: int | None = None
    until_done: bool = False  # after an end of its hosts, and not of its program, another job goes on
    max_cost: float | None = None  # in the currency of `prices`
    prices: Mapping[str, float] = field(default_factory=dict)  # of one host for one hour, by instance type

    @property
    def choices(self) -> tuple[HostChoice, ...]:
        """All kinds of hosts that the job may get, the first one first."""
        return (HostChoice(instance=self.instance, hosts=self.hosts), *self.others)

    @property
    def is_series(self) -> bool:
        """True if one job may be followed by another one of the task."""
        return self.until_done or bool(self.others)

    @property
    def by_type(self) -> tuple[HostChoice, ...]:
        """Type and number of the hosts of each group, or of all hosts."""
        groups = tuple(HostChoice(instance=each.instance, hosts=each.hosts) for each in self.groups)
        return groups or (HostChoice(instance=self.instance, hosts=self.hosts),)

    @property
    def all_hosts(self) -> int:
        """The number of hosts of all groups."""
        return sum(each.hosts for each in self.by_type)

    @property
    def instances(self) -> tuple[str, ...]:
        """All instance types."""
        return tuple(each.instance for each in self.by_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Where the hosts are, and what they may reach."""

    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    isolation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """A task. Names and numbers are checked; what SageMaker alone limits is checked in the finished request."""

    kind: Kind
    project: str
    task: str
    bucket: str  # "": SageMaker's default bucket of account and region
    prefix: str
    image: str
    role: str  # a name or ARN; "": the role of the caller
    kms_key: str
    where: Where
    docker: bool = False  # the hosts are containers of this machine
    region: str
    profile: str
    program: Program
    code: str  # an absolute path; "": no folder
    add: tuple[str, ...]  # absolute paths of files and folders that are added to the code
    max_code: int  # bytes: more files are no code, but data that somebody has forgotten there
    launch: LaunchSpec
    resources: ResourceSpec
    network: Network
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]  # of a processing task: names of folders
    tensorboard: bool = False  # TensorBoard's files go to S3 while a training job runs
    metrics: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    hyperparameters: Mapping[str, str] = field(default_factory=dict)
    unfilled: tuple[str, ...] = ()  # words such as {task:train/loss} whose values are not known yet
    elsewhere: tuple[TaskSpec, ...] = ()  # the same task in the other regions, in order of preference
    sweep_of: str = ""  # of a point of a sweep: the swept task, whose code and inputs it uses

    def of_choice(self, number: int) -> TaskSpec:
        """The task on one of its kinds of hosts."""
        if not self.resources.others:
            return self
        first, chosen = self.resources.choices[0], self.resources.choices[number]
        resources = replace(self.resources, instance=chosen.instance, hosts=chosen.hosts, others=(), first=first)
        return replace(self, resources=resources)

    @property
    def texts(self) -> tuple[tuple[str, str], ...]:
        """Each text that may hold a value of another task or of a sweep, after the option that it is of."""
        of_task = f"of task {self.task!r}"
        return (
            *((f"arguments {of_task}", word) for word in self.program.args),
            (f"shell {of_task}", self.program.shell),
            *((f"hyperparameter {name} {of_task}", text) for name, text in self.hyperparameters.items()),
        )

    def with_texts(self, change: Callable[[str], str]) -> TaskSpec:
        """The task with its `texts` changed."""
        program = replace(self.program, args=tuple(map(change, self.program.args)), shell=change(self.program.shell))
        return replace(
            self, program=program, hyperparameters={name: change(text) for name, text in self.hyperparameters.items()}
        )

    @property
    def folder(self) -> str:
        """The project's folder in the bucket, without slashes at its ends."""
        return "/".join(part for part in (self.prefix, self.project) if part)
