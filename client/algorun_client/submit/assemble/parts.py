"""Parts that the requests of training and processing jobs share. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from algorun.job.metric_definitions import DEFINITIONS
from algorun_client.request.model import FORMAT, FORMAT_PER_GPU, HOLD, Json, Kind, TaskAddress
from algorun_client.submit.look_up.facts import UNKNOWN_ROLE, Facts
from algorun_client.submit.read.material import Material
from algorun_client.submit.read.spec import TaskSpec

from . import rules

FORMAT_NAME, ID_NAME = "ALGORUN_REQUEST_FORMAT", "ALGORUN_REQUEST_ID"
COMMIT_NAME, PRICE_NAME = "ALGORUN_CODE_COMMIT", "ALGORUN_PRICE"
SHARE_NOTHING_NAME = "ALGORUN_SHARE_NOTHING"

# SageMaker's own folder for TensorBoard's files, and the variable that names it to the program.
TENSORBOARD, TENSORBOARD_NAME = "/opt/ml/output/tensorboard", "ALGORUN_TENSORBOARD_DIR"

DEFAULT_VOLUME_GB = 30
# simple-sagemaker's folder of a host. The launcher makes it if a program's arguments name it; a shell's command line lies
# in a file, so the request asks for it.
INSTANCE_STATE, STATE_NAME = "SSM_INSTANCE_STATE", "SSM_STATE"
CHECKPOINTS, PROCESSING_STATE = "/opt/ml/checkpoints", "/opt/ml/processing/state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One execution of a task: what was asked, what is known, and its names."""

    spec: TaskSpec
    facts: Facts
    material: Material
    address: TaskAddress
    number: int
    job: str
    inputs: Sequence[Json]  # InputDataConfig or ProcessingInputs, without the code

    @property
    def image(self) -> str:
        """The image, with its digest if that is known."""
        return self.facts.image or self.spec.image

    @property
    def role(self) -> str:
        """The role's ARN, or its placeholder."""
        return self.facts.role_arn or UNKNOWN_ROLE

    @property
    def code_uri(self) -> str:
        """The code archive in the bucket, "" without code."""
        return self.address.code(self.material.code.sha256) if self.material.code else ""

    @property
    def code_file(self) -> str:
        """The name of the code archive, "" without code."""
        return self.material.code.file if self.material.code else ""

    @property
    def extracted(self) -> list[str]:
        """The names of the inputs whose tar and zip files are unpacked."""
        return [each.name for each in self.spec.inputs if each.extract]


def environment(spec: TaskSpec) -> dict[str, Json]:
    """The variables of the job; build adds the request's identity."""
    own = {FORMAT_NAME: str(FORMAT_PER_GPU if spec.launch.per_gpu or spec.launch.hold_s is not None else FORMAT)}
    if spec.launch.share_nothing and spec.kind is Kind.TRAINING:
        own[SHARE_NOTHING_NAME] = "1"
    if spec.launch.hold_s is not None:
        own[HOLD] = str(spec.launch.hold_s)
    if spec.tensorboard:
        own[TENSORBOARD_NAME] = TENSORBOARD
    if INSTANCE_STATE in spec.program.shell and STATE_NAME not in spec.env:
        own[STATE_NAME] = CHECKPOINTS if spec.kind is Kind.TRAINING else PROCESSING_STATE
    return {**spec.env, **own}


def metrics(spec: TaskSpec) -> tuple[list[Json], list[str]]:
    """The user's definitions and as many of ours as fit; the names of ours that do not."""
    ours = [each for each in DEFINITIONS if each["Name"] not in spec.metrics]
    room = max(rules.MOST_METRICS - len(spec.metrics), 0)
    chosen: list[Json] = [{"Name": name, "Regex": regex} for name, regex in spec.metrics.items()]
    chosen += [dict(each) for each in ours[:room]]
    return chosen, [each["Name"] for each in ours[room:]]


def kms(spec: TaskSpec, key: str) -> dict[str, Json]:
    """The user's KMS key under this name; {} without one."""
    return {key: spec.kms_key} if spec.kms_key else {}


def volume_kms(spec: TaskSpec) -> dict[str, Json]:
    """The key of the hosts' volumes. Local disks have hardware keys of their own, and SageMaker refuses another one."""
    return (
        {} if any(rules.has_fixed_storage(each) for each in spec.resources.instances) else kms(spec, "VolumeKmsKeyId")
    )


def vpc(spec: TaskSpec) -> dict[str, Json]:
    """VpcConfig, {} without one."""
    network = spec.network
    return (
        {"SecurityGroupIds": list(network.security_groups), "Subnets": list(network.subnets)} if network.subnets else {}
    )


def tags(spec: TaskSpec) -> list[Json]:
    """The user's tags."""
    return [{"Key": key, "Value": value} for key, value in spec.tags.items()]
