"""The policies that `algorun role` prints. Pure.

A statement names its resources. Where AWS knows no resource for an action, the statement has `*`, and ANY_RESOURCE below
says why.

Sources: AWS's "How to use SageMaker execution roles" (CreateTrainingJob, CreateProcessingJob), "Access a training container through
AWS Systems Manager for remote debugging", "Cross-service confused
deputy prevention" of SageMaker, and the Service Authorization Reference (which actions know resources).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

VERSION = "2012-10-17"
SERVICE = "sagemaker.amazonaws.com"
JOBS = ("Training", "Processing")
# The first words of a region's name, and its partition. Every other region is one of `aws`.
PARTITIONS = (
    ("cn-", "aws-cn"), ("us-gov-", "aws-us-gov"), ("us-iso-", "aws-iso"), ("us-isob-", "aws-iso-b"),
    ("eu-isoe-", "aws-iso-e"), ("us-isof-", "aws-iso-f"), ("eusc-", "aws-eusc"),
)  # fmt: skip
# Statements whose resource is `*`, and why.
ANY_RESOURCE = {
    "Metrics": "cloudwatch:PutMetricData has no resource; a condition narrows it to SageMaker's namespaces",
    "Figures": "cloudwatch:GetMetricData has no resource, and no condition either",
    "Quotas": "servicequotas:ListServiceQuotas has no resource",
    "Registry": "ecr:GetAuthorizationToken has no resource",
    "Shell": "sessions name no resource; a condition narrows them to hosts of training jobs",
    "ShellAgent": "ssmmessages knows no resource",
    "Lists": "sagemaker:ListTrainingJobs and ListProcessingJobs have no resource",
    "VpcLook": "ec2:Describe* of networks has no resource",
    "NetworkLook": "ec2:Describe* of networks has no resource; that of a file system is not known when the policy is made",
}
OBJECTS = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload")
# What submit asks before it sends a job to subnets: whether they, and file systems, exist and can be reached.
NETWORK_LOOK = (
    *("ec2:DescribeSecurityGroups", "ec2:DescribeSubnets", "elasticfilesystem:DescribeFileSystems"),
    *("elasticfilesystem:DescribeMountTargets", "fsx:DescribeFileSystems"),
)
# Of the agent that SageMaker starts on a host for remote debugging.
SHELL_AGENT = tuple(f"ssmmessages:{verb}{kind}Channel" for verb in ("Create", "Open") for kind in ("Control", "Data"))
TUNER = (
    *(f"sagemaker:{verb}HyperParameterTuningJob" for verb in ("Create", "Describe", "Stop")),
    "sagemaker:ListTrainingJobsForHyperParameterTuningJob",
)
LAYERS = ("ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")


class Statement(TypedDict, total=False):
    """IAM's words."""

    Sid: str
    Effect: str
    Principal: Mapping[str, str]
    Action: str | list[str]
    Resource: str | list[str]
    Condition: Mapping[str, Mapping[str, str | list[str]]]


class Policy(TypedDict):
    """IAM's words."""

    Version: str
    Statement: list[Statement]


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """What the policies name. Nothing here holds a wildcard."""

    account: str
    regions: tuple[str, ...]  # of one partition
    buckets: tuple[str, ...]  # one in each region
    folder: str  # in each bucket, without slashes at its ends; never ""
    role: str = ""  # the job's role: a name, below its path if it has one; only the client's policy needs it
    kms_keys: tuple[str, ...] = ()  # ARNs of keys
    repositories: tuple[str, ...] = ()  # ARNs of the image's; (): all of this account and these regions
    vpc: bool = False
    tuner: bool = False  # tunings with tuner = "sagemaker"
    shell: bool = False  # --hold-on-failure and `algorun shell`

    @property
    def partition(self) -> str:
        """The first part of every ARN in these regions."""
        return partition_of(self.regions[0])

    def arns(self, service: str, resource: str) -> list[str]:
        """Of a resource in this account, in each region."""
        return [f"arn:{self.partition}:{service}:{region}:{self.account}:{resource}" for region in self.regions]

    @property
    def bucket_arns(self) -> list[str]:
        return [f"arn:{self.partition}:s3:::{bucket}" for bucket in self.buckets]

    @property
    def role_arn(self) -> str:
        return f"arn:{self.partition}:iam::{self.account}:role/{self.role}"

    @property
    def jobs(self) -> list[str]:
        """Every job of this account and these regions."""
        return [arn for kind in JOBS for arn in self.arns("sagemaker", f"{kind.lower()}-job/*")]

    @property
    def tuning_jobs(self) -> list[str]:
        """Those of SageMaker's tuner, if there are any."""
        return self.arns("sagemaker", "hyper-parameter-tuning-job/*") if self.tuner else []

    @property
    def logs(self) -> list[str]:
        """The groups that SageMaker writes jobs' lines to, and their streams."""
        groups = (f"log-group:/aws/sagemaker/{kind}Jobs{end}" for kind in JOBS for end in ("", ":*"))
        return [arn for group in groups for arn in self.arns("logs", group)]


def partition_of(region: str) -> str:
    """The partition of a region: `aws`, `aws-cn`, `aws-us-gov` or another one."""
    return next((partition for begin, partition in PARTITIONS if region.startswith(begin)), "aws")


def job_policy(places: Places) -> Policy:
    """The rights of the job's role: its folder in the bucket, its lines and metrics, its image."""
    logs = ("logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents")
    return _policy(
        *_folder(places),
        _allow("Region", ["s3:GetBucketLocation"], places.bucket_arns),
        _allow("Logs", logs, places.logs),
        {
            **_allow("Metrics", ["cloudwatch:PutMetricData"], "*"),
            "Condition": {"StringLike": {"cloudwatch:namespace": "/aws/sagemaker/*"}},
        },
        _allow("Image", ["ecr:BatchCheckLayerAvailability", *LAYERS], _repositories(places)),
        _allow("Registry", ["ecr:GetAuthorizationToken"], "*"),
        *_key(places),
        *_grant(places),
        *(_vpc(places) if places.vpc else ()),
        *([_allow("ShellAgent", SHELL_AGENT, "*")] if places.shell else ()),
    )


def trust_policy(places: Places) -> Policy:
    """Who may take the job's role: SageMaker, for a job of this account and these regions.

    Without the conditions SageMaker would take the role for whoever can make SageMaker act, in any account.
    """
    return _policy(
        {
            "Sid": "Jobs",
            "Effect": "Allow",
            "Principal": {"Service": SERVICE},
            "Action": "sts:AssumeRole",
            "Condition": {
                "StringEquals": {"aws:SourceAccount": places.account},
                "ArnLike": {"aws:SourceArn": [*places.jobs, *places.tuning_jobs]},
            },
        }
    )


def client_policy(places: Places) -> Policy:
    """The rights that submit, follow, stop, fetch and `doctor --aws` need. To make a bucket is not among them."""
    verbs = [f"sagemaker:{verb}{kind}Job" for kind in JOBS for verb in ("Create", "Describe", "Stop")]
    return _policy(
        _allow("Jobs", [*verbs, "sagemaker:AddTags"], places.jobs),
        *([_allow("Tuner", [*TUNER, "sagemaker:AddTags"], places.tuning_jobs)] if places.tuner else ()),
        _allow("Lists", [f"sagemaker:List{kind}Jobs" for kind in JOBS], "*"),
        {
            **_allow("PassRole", ["iam:PassRole"], places.role_arn),
            "Condition": {"StringEquals": {"iam:PassedToService": SERVICE}},
        },
        _allow("Role", ["iam:GetRole"], places.role_arn),
        *_folder(places),
        _allow("Logs", ["logs:DescribeLogStreams", "logs:GetLogEvents"], places.logs),
        _allow("Figures", ["cloudwatch:GetMetricData"], "*"),
        _allow("Quotas", ["servicequotas:ListServiceQuotas"], "*"),
        _allow("Image", ["ecr:DescribeImages", *LAYERS], _repositories(places)),
        *_key(places),
        *([_allow("NetworkLook", NETWORK_LOOK, "*")] if places.vpc else ()),
        *(_shell(places) if places.shell else ()),
        *([_allow("KeyState", ["kms:DescribeKey"], places.kms_keys)] if places.kms_keys else ()),
    )


def _folder(places: Places) -> list[Statement]:
    """For a key that is not there S3 compares s3:prefix with the key, so a missing object is still a 404 and no 403."""
    return [
        {
            **_allow("Bucket", ["s3:ListBucket"], places.bucket_arns),
            "Condition": {"StringLike": {"s3:prefix": f"{places.folder}/*"}},
        },
        _allow("Objects", OBJECTS, [f"{bucket}/{places.folder}/*" for bucket in places.bucket_arns]),
    ]


def _repositories(places: Places) -> Sequence[str]:
    return places.repositories or places.arns("ecr", "repository/*")


def _key(places: Places) -> list[Statement]:
    if not places.kms_keys:
        return []
    return [_allow("Key", ["kms:Decrypt", "kms:Encrypt", "kms:GenerateDataKey"], places.kms_keys)]


def _grant(places: Places) -> list[Statement]:
    """For the volumes of hosts: SageMaker hands the key to EBS. No grant is for anybody but AWS's services."""
    if not places.kms_keys:
        return []
    condition = {"Bool": {"kms:GrantIsForAWSResource": "true"}}
    return [{**_allow("Grant", ["kms:CreateGrant"], places.kms_keys), "Condition": condition}]


def _vpc(places: Places) -> list[Statement]:
    """Interfaces are made in this account. Subnets and security groups may be another account's that shares its VPC."""
    kinds = ("subnet", "security-group")
    shared = [f"arn:{places.partition}:ec2:{region}:*:{kind}/*" for region in places.regions for kind in kinds]
    interfaces = places.arns("ec2", "network-interface/*")
    look = ("DhcpOptions", "NetworkInterfaces", "SecurityGroups", "Subnets", "Vpcs")
    changes = ("CreateNetworkInterfacePermission", "DeleteNetworkInterface", "DeleteNetworkInterfacePermission")
    return [
        _allow("VpcLook", [f"ec2:Describe{each}" for each in look], "*"),
        _allow("VpcInterface", ["ec2:CreateNetworkInterface"], [*interfaces, *shared]),
        _allow("VpcChange", [f"ec2:{each}" for each in changes], interfaces),
    ]


def _shell(places: Places) -> list[Statement]:
    """Sessions with hosts of training jobs, and with nothing else; and to switch remote debugging on for a job that runs."""
    target = {"StringLike": {"ssm:resourceTag/aws:ssmmessages:target-id": "sagemaker-training-job:*"}}
    switch = _allow("ShellSwitch", ["sagemaker:UpdateTrainingJob"], places.arns("sagemaker", "training-job/*"))
    return [switch, {**_allow("Shell", ["ssm:StartSession", "ssm:TerminateSession"], "*"), "Condition": target}]


def _policy(*statements: Statement) -> Policy:
    return {"Version": VERSION, "Statement": list(statements)}


def _allow(name: str, actions: Sequence[str], resources: str | Sequence[str]) -> Statement:
    """A single resource is no list."""
    found = [resources] if isinstance(resources, str) else list(resources)
    return {"Sid": name, "Effect": "Allow", "Action": list(actions), "Resource": found if len(found) > 1 else found[0]}
