"""`algorun role`: prints narrow policies, as JSON that `aws iam` takes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TypedDict

from algorun_client.common.codes import ClientCode

from .common_options import add_place_options, add_where_options

FOR = ("job", "trust", "client")
VERSION = "2012-10-17"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "--for",
        dest="whom",
        choices=FOR,
        default="job",
        help="job: what the job's role may do (default); trust: who may take that role; client: what you need yourself",
    )
    parser.add_argument("--role", metavar="NAME", default="*", help="the job's role, for --for client")
    parser.add_argument("--kms-key", metavar="ARN", default="", help="the key of buckets and volumes, if there is one")
    parser.add_argument("--vpc", action="store_true", help="the job runs in subnets of a VPC")
    add_where_options(parser)
    add_place_options(parser)


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Makes no call: account and default bucket stay patterns where they are not given."""
    bucket = options.bucket.removeprefix("s3://").strip("/") or f"sagemaker-{options.region or '*'}-*"
    folder = "/".join(part for part in (options.prefix.strip("/"), options.project) if part)
    places = Places(bucket, folder, options.region or "*", options.kms_key, options.role)
    document = {"job": job_policy, "trust": trust_policy, "client": client_policy}[options.whom](places)
    if options.vpc and options.whom == "job":
        document["Statement"].append(_allow("Vpc", VPC, "*"))
    print(json.dumps(document, indent=None if options.json else 2))
    return ClientCode.OK


class Statement(TypedDict, total=False):
    """IAM's words."""

    Sid: str
    Effect: str
    Principal: Mapping[str, str]
    Action: str | list[str]
    Resource: str | list[str]
    Condition: Mapping[str, Mapping[str, str]]


class Policy(TypedDict):
    """IAM's words."""

    Version: str
    Statement: list[Statement]


class Places:
    """What the policies name."""

    def __init__(self, bucket: str, folder: str, region: str, kms_key: str, role: str) -> None:
        self.bucket = f"arn:aws:s3:::{bucket}"
        self.objects = f"{self.bucket}/{folder + '/' if folder else ''}*"
        self.region, self.kms_key = region, kms_key
        self.role = role if role.startswith("arn:") else f"arn:aws:iam::*:role/{role}"

    def arn(self, service: str, resource: str) -> str:
        """Of a resource in any account: the policy is attached in one."""
        return f"arn:aws:{service}:{self.region}:*:{resource}"


VPC = [
    "ec2:CreateNetworkInterface", "ec2:CreateNetworkInterfacePermission", "ec2:DeleteNetworkInterface",
    "ec2:DeleteNetworkInterfacePermission", "ec2:DescribeDhcpOptions", "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups", "ec2:DescribeSubnets", "ec2:DescribeVpcs",
]  # fmt: skip
OBJECTS = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
GROUP = "log-group:/aws/sagemaker/*"


def job_policy(places: Places) -> Policy:
    """The rights of the job's role: its bucket, its lines and metrics, its image."""
    return _policy(
        _allow("Bucket", ["s3:ListBucket", "s3:GetBucketLocation"], places.bucket),
        _allow("Objects", OBJECTS, places.objects),
        _allow(
            "Logs",
            ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
            places.arn("logs", GROUP),
        ),
        {
            **_allow("Metrics", ["cloudwatch:PutMetricData"], "*"),
            "Condition": {"StringLike": {"cloudwatch:namespace": "/aws/sagemaker/*"}},
        },
        _allow(
            "Image",
            ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
            places.arn("ecr", "repository/*"),
        ),
        _allow("Registry", ["ecr:GetAuthorizationToken"], "*"),
        *_key(places),
    )


def trust_policy(places: Places) -> Policy:
    """Who may take the job's role: SageMaker."""
    return _policy({"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"})


def client_policy(places: Places) -> Policy:
    """The rights that submit, follow, stop and fetch need."""
    return _policy(
        _allow(
            "Jobs",
            [
                f"sagemaker:{verb}{kind}Job"
                for kind in ("Training", "Processing")
                for verb in ("Create", "Describe", "Stop")
            ]
            + ["sagemaker:AddTags"],
            [places.arn("sagemaker", "training-job/*"), places.arn("sagemaker", "processing-job/*")],
        ),
        _allow("Lists", ["sagemaker:ListTrainingJobs", "sagemaker:ListProcessingJobs"], "*"),
        {
            **_allow("PassRole", ["iam:PassRole"], places.role),
            "Condition": {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}},
        },
        _allow("Role", ["iam:GetRole"], places.role),
        _allow("Bucket", ["s3:ListBucket"], places.bucket),
        _allow("Objects", OBJECTS, places.objects),
        _allow("Logs", ["logs:DescribeLogStreams", "logs:GetLogEvents"], places.arn("logs", GROUP)),
        _allow("Figures", ["cloudwatch:GetMetricData"], "*"),  # it has no resources
        _allow(
            "Image",
            ["ecr:DescribeImages", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
            places.arn("ecr", "repository/*"),
        ),
        *_key(places),
    )


def _key(places: Places) -> list[Statement]:
    key = places.kms_key
    return [_allow("Key", ["kms:Decrypt", "kms:GenerateDataKey", "kms:CreateGrant"], key)] if key else []


def _policy(*statements: Statement) -> Policy:
    return {"Version": VERSION, "Statement": list(statements)}


def _allow(name: str, actions: list[str], resource: str | list[str]) -> Statement:
    return {"Sid": name, "Effect": "Allow", "Action": actions, "Resource": resource}
