"""`algorun role`: prints narrow policies, as JSON that `aws iam` takes."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from algorun.common.errors import UserError
from algorun_client.common import settings
from algorun_client.common.codes import ClientCode
from algorun_client.request import names
from algorun_client.submit.read import regions, task_place
from algorun_client.submit.read.common_options import add_place_options, add_where_options

from .role_policies import Places, client_policy, job_policy, partition_of, trust_policy

POLICIES = {"job": job_policy, "trust": trust_policy, "client": client_policy}
ACCOUNT = re.compile(r"\d{12}")
REGION = re.compile(r"[a-z]{2,}(-[a-z]+)+-\d+")
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# A name of at most 64 characters, below a path if there is one. IAM's wildcards are none of them.
ROLE = re.compile(r"(?:[\w+=,.@/-]+/)?[\w+=,.@-]{1,64}", re.ASCII)
ROLE_ARN = re.compile(r"arn:(aws[a-z-]*):iam::(\d{12}):role/(.+)")
KEY_ARN = re.compile(r"arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/[A-Za-z0-9-]+")
IMAGE = re.compile(
    r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.[a-z0-9.-]+/([a-z0-9._/-]+?)(?::[\w.-]+)?(?:@sha256:[0-9a-f]{64})?"
)
IN_POLICIES = "*?$"  # IAM's wildcards, and the beginning of its variables


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "--for",
        dest="whom",
        choices=tuple(POLICIES),
        default="job",
        help="job: what the job's role may do (default); trust: who may take that role; client: what you need yourself",
    )
    parser.add_argument("--account", metavar="ID", default="", help="your AWS account (default: that of --role's ARN)")
    parser.add_argument(
        "--role",
        metavar="NAME",
        default="",
        help="the job's role, by name or ARN, for --for client; the only one you may pass",
    )
    parser.add_argument(
        "--image",
        metavar="URI",
        default="",
        help="the image in ECR (default: all of the account and its regions); several: A,B",
    )
    parser.add_argument(
        "--kms-key", metavar="ARN", default="", help="the key of buckets and volumes, if there is one; several: A,B"
    )
    parser.add_argument("--vpc", action="store_true", help="the job runs in subnets of a VPC")
    parser.add_argument("--shell", action="store_true", help="for --hold-on-failure and `algorun shell`")
    parser.add_argument("--tuner", action="store_true", help="for tunings with tuner = 'sagemaker'")
    add_where_options(parser)
    add_place_options(parser)


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Prints one policy. Makes no call.

    Raises UserError with code 64 for a value that would widen the policy, and if account, region or role are missing.
    """
    policy = POLICIES[options.whom](_places(options, environ))
    print(json.dumps(policy, indent=None if options.json else 2))
    return ClientCode.OK


def _places(options: argparse.Namespace, environ: Mapping[str, str]) -> Places:
    found = task_place.read_places(options, environ, Path.cwd())
    of_shell = environ.get("AWS_REGION", "") or environ.get("AWS_DEFAULT_REGION", "")
    in_regions = tuple(_region(each.region or of_shell) for each in found)
    if len(partitions := sorted({partition_of(region) for region in in_regions})) > 1:
        raise UserError(
            "--region", f"{', '.join(in_regions)} are in the partitions {' and '.join(partitions)}, and no role is in two",
            fix="name regions of one partition",
        )  # fmt: skip
    account, role = _role(options.whom, options.account, options.role or settings.ROLE.read(environ), in_regions[0])
    project, prefix = names.checked("--project", found[0].project), found[0].prefix
    buckets = tuple(
        each.bucket or f"sagemaker-{region}-{account}" for each, region in zip(found, in_regions, strict=True)
    )
    for bucket in buckets:
        _check("--bucket", bucket, BUCKET, "the name of a bucket", "--bucket NAME, as `aws s3 ls` shows it")
    if any(each in prefix for each in IN_POLICIES):
        raise UserError(
            "--prefix", f"{prefix!r} means more than one folder in a policy",
            allowed=f"no {' '.join(IN_POLICIES)}", fix="--prefix FOLDER",
        )  # fmt: skip
    keys = tuple(filter(None, options.kms_key.split(",")))
    for key in keys:
        fix = "give the key's ARN: aws kms describe-key --key-id KEY --query KeyMetadata.Arn"
        _check("--kms-key", key, KEY_ARN, "a key's ARN, arn:aws:kms:REGION:ACCOUNT:key/ID", fix)
    return Places(
        account=account,
        regions=in_regions,
        buckets=buckets,
        folder="/".join(part for part in (prefix, project) if part),
        role=role,
        kms_keys=keys,
        repositories=_repositories(options.image, in_regions),
        vpc=options.vpc,
        shell=options.shell,
        tuner=options.tuner,
    )


def _region(region: str) -> str:
    if not region:
        raise UserError("--region", "no region is given", fix="--region NAME, or AWS_REGION")
    _check("--region", region, REGION, "the name of an AWS region", "such as --region eu-west-1")
    return region


def _role(whom: str, account: str, role: str, region: str) -> tuple[str, str]:
    """The account, and the role's name below its path; "" if the policy does not name the role."""
    found = ROLE_ARN.fullmatch(role)
    if found is not None:
        partition, of_role, role = found.groups()
        if partition != partition_of(region):
            raise UserError(
                "--role", f"{found[0]} is not in the partition of {region}, {partition_of(region)}",
                fix="name a region and a role that go together",
            )  # fmt: skip
        if account and account != of_role:
            raise UserError(
                "--account", f"{account} is not the account of --role, {of_role}", fix="leave --account out"
            )
        account = of_role
    if not account:
        raise UserError(
            "--account", "no account is given", allowed="12 digits",
            fix="--account ID; `aws sts get-caller-identity --query Account --output text` prints it",
        )  # fmt: skip
    _check("--account", account, ACCOUNT, "a number of 12 digits", "--account 123456789012")
    if whom == "client" and not role:
        raise UserError(
            "--role", "no role is given, and --for client allows to pass one role only",
            fix="--role NAME or ARN of the job's role, or ALGORUN_ROLE",
        )  # fmt: skip
    if role:
        _check("--role", role, ROLE, "a role's name or ARN", "--role NAME, as `aws iam list-roles` shows it")
    return account, role


def _repositories(images: str, in_regions: Sequence[str]) -> tuple[str, ...]:
    """The ARNs of the images' repositories, which may be another account's and another region's; () for no image.

    One image stands for its copies in the other regions, as for `submit`.
    """
    named = tuple(filter(None, images.split(",")))
    for image in named:
        _check("--image", image, IMAGE, "an image in ECR", "--image ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME:TAG")
    if len(named) == 1:
        named += tuple(regions.image_in(named[0], region) for region in in_regions[1:])
    return tuple(dict.fromkeys(map(_repository, named)))


def _repository(image: str) -> str:
    found = IMAGE.fullmatch(image)
    assert found is not None
    account, region, name = found.groups()
    return f"arn:{partition_of(region)}:ecr:{region}:{account}:repository/{name}"


def _check(option: str, value: str, pattern: re.Pattern[str], allowed: str, fix: str) -> None:
    if pattern.fullmatch(value) is None:
        raise UserError(option, f"{value!r} is not {allowed}", fix=fix)
