"""The state of a job as one type, from the answers of DescribeTrainingJob and DescribeProcessingJob."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from algorun_client.common.errors import ApiError, NotFound
from algorun_client.request.model import HOLD, Kind

from .api import SageMakerApi
from .fields import Table, inner, number, required, tables, text, time

ENDED = ("Completed", "Failed", "Stopped")
GROUPS = {Kind.TRAINING: "/aws/sagemaker/TrainingJobs", Kind.PROCESSING: "/aws/sagemaker/ProcessingJobs"}
INTERRUPTED = "Interrupted"  # the phase in which AWS has taken spot instances back
WAITS = ("Starting", "Pending", INTERRUPTED)  # phases without hosts
INSTANCES = "instances"
POOL_ENDED = ("Reused", "Terminated")  # a warm pool whose kept time does not grow any more
HOST_KIND = "AlgorunHosts"  # in the answers of the local target: what its hosts are
REQUEST_ID = "ALGORUN_REQUEST_ID"  # in the environment of a job that this client has made


@dataclass(frozen=True, slots=True)
class JobPhase:
    """A stretch of a job's time, such as Downloading. `end` is None while it lasts."""

    name: str
    begin: datetime
    end: datetime | None = None

    def seconds(self, now: datetime) -> float:
        """How long it has lasted."""
        return max(0.0, ((self.end or now) - self.begin).total_seconds())


@dataclass(frozen=True, slots=True)
class JobTimes:
    """When a job was created and when it ended, and what is paid for."""

    created: datetime | None = None
    ended: datetime | None = None
    billable_s: int | None = None  # of each host
    training_s: int | None = None  # the same without what spot instances save
    kept_s: int | None = None  # how long the hosts were kept for the next job, which is paid for too; of each host
    keeping_has_ended: bool = False  # AWS has said that the hosts are not kept for the next job any more


@dataclass(frozen=True, slots=True)
class InstanceGroups:
    """The hosts of a job: instance type and number of each instance group, one group if the job has none.

    `kind`: what they are, INSTANCES or what carries out a job on this machine. Whatever instance type its request names, nobody
    pays for those.
    """

    groups: tuple[tuple[str, int], ...] = ()
    kind: str = INSTANCES

    @property
    def count(self) -> int:
        """The number of all hosts."""
        return sum(count for _, count in self.groups)

    @property
    def instance(self) -> str:
        """The types: `ml.g5.12xlarge`, or `ml.p4d.24xlarge + ml.m5.large` of instance groups; "" on this machine."""
        return " + ".join(instance for instance, _ in self.groups) if self.are_paid else ""

    @property
    def are_paid(self) -> bool:
        """False for those of this machine."""
        return self.kind == INSTANCES

    @property
    def text(self) -> str:
        """`2 x ml.g5.12xlarge`, or `2 simulated hosts of this machine`."""
        if self.are_paid:
            return f"{self.count} x {self.instance}"
        return f"{self.count} {self.kind if self.count != 1 else self.kind.removesuffix('s')} of this machine"


@dataclass(frozen=True, slots=True)
class Output:
    """What a job leaves in S3: one object (an archive), or all objects below a prefix that ends with a slash."""

    name: str
    uri: str


@dataclass(frozen=True, slots=True)
class Left:
    """Where in S3 a job leaves what it made."""

    model: str = ""  # the address of model.tar.gz, "" while there is none
    outputs: tuple[Output, ...] = ()
    checkpoints: str = ""  # the prefix, with a slash at its end
    tensorboard: str = ""  # as `checkpoints`


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """What SageMaker says about a job."""

    kind: Kind
    job: str
    status: str  # InProgress, Completed, Failed, Stopping, Stopped
    detail: str = ""  # training: SecondaryStatus, such as MaxRuntimeExceeded
    failure: str = ""  # FailureReason
    exit_message: str = ""  # processing: what the container wrote to /opt/ml/output/message
    phases: tuple[JobPhase, ...] = ()
    times: JobTimes = JobTimes()
    hosts: InstanceGroups = InstanceGroups()
    is_spot: bool = False
    can_be_entered: bool = False  # SageMaker's remote debugging is on
    hold_s: float = 0.0  # how long its hosts stay after a failure; 0: no hold is asked for
    request_id: str = ""  # "" for a job of another client
    left: Left = Left()
    metrics: tuple[tuple[str, str], ...] = ()  # name and regular expression

    @property
    def ended(self) -> bool:
        """True once nothing of the job runs any more."""
        return self.status in ENDED

    @property
    def interruptions(self) -> int:
        """How often AWS has taken the spot instances back."""
        return sum(each.name == INTERRUPTED for each in self.phases)

    @property
    def retries(self) -> int:
        """How often SageMaker has started the job again after an error of its own (`--retries`)."""
        names = [each.name for each in self.phases if each.name != "Pending"]
        return sum(after == "Starting" and before not in WAITS for before, after in pairwise(names))

    @property
    def saving(self) -> float | None:
        """The share that spot instances saved, 0 to 1. None if it is unknown, and for jobs on other instances."""
        billable_s, training_s = self.times.billable_s, self.times.training_s
        if not self.is_spot or billable_s is None or not training_s or billable_s > training_s:
            return None
        return 1 - billable_s / training_s


def describe(api: SageMakerApi, kind: Kind, job: str) -> JobState:
    """Asks for the state of a job. Raises NotFound."""
    if kind is Kind.TRAINING:
        return read_training(api.describe_training_job(TrainingJobName=job))
    return read_processing(api.describe_processing_job(ProcessingJobName=job))


def find(api: SageMakerApi, job: str) -> JobState | None:
    """A job of either kind, by its name. None if there is none."""
    for kind in Kind:
        try:
            return describe(api, kind, job)
        except NotFound:
            continue
        except ApiError as error:
            if error.code != "ValidationException":  # a text that cannot be a job's name
                raise
    return None


def ask_to_stop(api: SageMakerApi, kind: Kind, job: str) -> JobState | None:
    """Asks a job to stop. Returns its state if it has ended by itself meanwhile. Raises ApiError."""
    try:
        if kind is Kind.TRAINING:
            api.stop_training_job(TrainingJobName=job)
        else:
            api.stop_processing_job(ProcessingJobName=job)
    except ApiError:
        state = describe(api, kind, job)
        if not state.ended:
            raise
        return state
    return None


def read_training(answer: Table) -> JobState:
    """The answer of DescribeTrainingJob. Raises ApiError if it is none."""
    job, status = required(answer, "TrainingJobName"), required(answer, "TrainingJobStatus")
    out = text(inner(answer, "OutputDataConfig"), "S3OutputPath").rstrip("/")
    return JobState(
        kind=Kind.TRAINING,
        job=job,
        status=status,
        detail=text(answer, "SecondaryStatus"),
        failure=text(answer, "FailureReason"),
        phases=_phases(tables(answer, "SecondaryStatusTransitions")),
        times=JobTimes(
            created=time(answer, "CreationTime"),
            ended=_ended(answer, status, "TrainingEndTime"),
            billable_s=number(answer, "BillableTimeInSeconds"),
            training_s=number(answer, "TrainingTimeInSeconds"),
            kept_s=number(inner(answer, "WarmPoolStatus"), "ResourceRetainedBillableTimeInSeconds"),
            keeping_has_ended=text(inner(answer, "WarmPoolStatus"), "Status") in POOL_ENDED,
        ),
        hosts=_hosts(inner(answer, "ResourceConfig"), answer),
        is_spot=answer.get("EnableManagedSpotTraining") is True,
        can_be_entered=inner(answer, "RemoteDebugConfig").get("EnableRemoteDebug") is True,
        hold_s=_hold_s(inner(answer, "Environment")),
        request_id=text(inner(answer, "Environment"), REQUEST_ID),
        left=Left(
            model=text(inner(answer, "ModelArtifacts"), "S3ModelArtifacts"),
            outputs=(Output("output", f"{out}/{job}/output/output.tar.gz"),) if out else (),
            checkpoints=_folder(text(inner(answer, "CheckpointConfig"), "S3Uri")),
            tensorboard=tensorboard_folder(answer, job),
        ),
        metrics=tuple(
            (text(each, "Name"), text(each, "Regex"))
            for each in tables(inner(answer, "AlgorithmSpecification"), "MetricDefinitions")
        ),
    )


def tensorboard_folder(job_or_request: Table, job: str) -> str:
    """Where SageMaker puts a training job's files for TensorBoard, with a slash at its end; "" if it was not asked to.

    The SDK's estimators know the folder's name (`latest_job_tensorboard_artifacts_path`).
    """
    path = text(inner(job_or_request, "TensorBoardOutputConfig"), "S3OutputPath")
    return f"{path.rstrip('/')}/{job}/tensorboard-output/" if path else ""


def read_processing(answer: Table) -> JobState:
    """The answer of DescribeProcessingJob. It has no phases: they follow from three times. Raises ApiError."""
    status = required(answer, "ProcessingJobStatus")
    created, begun = time(answer, "CreationTime"), time(answer, "ProcessingStartTime")
    ended = _ended(answer, status, "ProcessingEndTime")
    phases = [JobPhase("Starting", created, begun or ended)] if created else []
    if begun:
        phases.append(JobPhase("Processing", begun, ended))
    return JobState(
        kind=Kind.PROCESSING,
        job=required(answer, "ProcessingJobName"),
        status=status,
        failure=text(answer, "FailureReason"),
        exit_message=text(answer, "ExitMessage"),
        phases=tuple(phases),
        times=JobTimes(created=created, ended=ended),
        hosts=_hosts(inner(inner(answer, "ProcessingResources"), "ClusterConfig"), answer),
        request_id=text(inner(answer, "Environment"), REQUEST_ID),
        left=Left(outputs=_processing_outputs(tables(inner(answer, "ProcessingOutputConfig"), "Outputs"))),
    )


def _hold_s(environment: Table) -> float:
    """0.0 also for what is no time: the launcher refuses such a job."""
    try:
        seconds = float(text(environment, HOLD) or 0.0)
    except ValueError:
        return 0.0
    return seconds if 0.0 < seconds < math.inf else 0.0


def _ended(answer: Table, status: str, key: str) -> datetime | None:
    """A job that never ran has no end of its own."""
    return time(answer, key) or (time(answer, "LastModifiedTime") if status in ENDED else None)


def _processing_outputs(outputs: Sequence[Table]) -> tuple[Output, ...]:
    found = [(text(each, "OutputName"), text(inner(each, "S3Output"), "S3Uri")) for each in outputs]
    return tuple(Output(name, _folder(uri)) for name, uri in found if uri)


def _phases(transitions: Sequence[Table]) -> tuple[JobPhase, ...]:
    found = []
    for each in transitions:
        begin, status = time(each, "StartTime"), text(each, "Status")
        if begin is not None and status not in ENDED:  # an end is no stretch of time
            found.append(JobPhase(status, begin, time(each, "EndTime")))
    return tuple(found)


def _hosts(resources: Table, answer: Table) -> InstanceGroups:
    groups = tables(resources, "InstanceGroups") or (resources,)
    found = ((text(each, "InstanceType"), number(each, "InstanceCount") or 0) for each in groups)
    named = tuple((instance, count) for instance, count in found if instance or count)
    return InstanceGroups(named, text(answer, HOST_KIND) or INSTANCES)


def _folder(uri: str) -> str:
    return f"{uri.rstrip('/')}/" if uri else ""
