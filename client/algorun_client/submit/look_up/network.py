"""Whether subnets, security groups and file systems exist and fit together. Reads only.

SageMaker finds out minutes later, once it has hosts. A caller who may not ask, or has no way to EC2, is not stopped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from algorun.common.errors import UserError
from algorun_client.aws.api import Answer
from algorun_client.aws.aws_session import AwsSession, call
from algorun_client.aws.boto_types import Client
from algorun_client.aws.fields import inner, required, tables, text
from algorun_client.common.errors import ApiError
from algorun_client.common.refusals import Refusal, explained, refusal
from algorun_client.submit.read.spec import FileSystem, FileSystemSource, InputSpec, Network, TaskSpec

TRIES = 3  # SageMaker checks all of this again, so nobody is kept waiting
USABLE = ("available", "AVAILABLE", "updating", "UPDATING")
ABSENT = "FileSystemNotFound"  # of EFS and FSx
MISSING = ("NotFound", "Malformed")  # the ends of EC2's codes for an ID that it does not know


def check(spec: TaskSpec, session: AwsSession) -> None:
    """Raises UserError for a subnet, a security group or a file system that does not exist, or that no host can reach."""
    if not spec.network.subnets:  # then `rules` refuses file systems
        return
    try:
        ec2 = session.client("ec2", TRIES)
        zones = _subnet_zones(spec.network, ec2)
        with _existing("--security-groups", ec2):
            call(ec2.describe_security_groups, "DescribeSecurityGroups", GroupIds=list(spec.network.security_groups))
        for each in spec.inputs:
            if each.file_system is None:
                continue
            if each.file_system.system is FileSystem.FSX:
                _check_fsx(each, each.file_system, session)
            else:
                _check_efs(each, each.file_system, zones, session)
    except ApiError as error:
        if refusal(error) in (Refusal.EXPIRED, Refusal.CREDENTIALS):
            raise explained(error) from None


def _subnet_zones(network: Network, ec2: Client) -> dict[str, str]:
    """The availability zone of each subnet."""
    with _existing("--subnets", ec2):
        listed = tables(call(ec2.describe_subnets, "DescribeSubnets", SubnetIds=list(network.subnets)), "Subnets")
    vpcs = {text(each, "VpcId"): text(each, "SubnetId") for each in listed}
    if len(vpcs) > 1:
        places = ", ".join(f"{subnet} in {vpc}" for vpc, subnet in sorted(vpcs.items()))
        raise UserError("--subnets", f"belong to several VPCs: {places}", fix="name subnets of one VPC")
    return {text(each, "SubnetId"): text(each, "AvailabilityZone") for each in listed}


@contextlib.contextmanager
def _existing(where: str, ec2: Client) -> Iterator[None]:
    """Turns EC2's refusal of an unknown ID into a UserError."""
    try:
        yield
    except ApiError as error:
        if error.code.endswith(MISSING):
            place = f"region {ec2.meta.region_name}"
            raise UserError(where, f"{error.message} ({place})", fix="check the IDs and --region") from None
        raise


def _check_fsx(asked: InputSpec, source: FileSystemSource, session: AwsSession) -> None:
    client = session.client("fsx", TRIES)
    found = _described(asked, client.describe_file_systems, session, FileSystemIds=[source.identity])
    kind = required(found, "FileSystemType")
    if kind != "LUSTRE":
        raise UserError(asked.where, f"{asked.source} is a file system of {kind}", allowed="FSx for Lustre, EFS")
    _check_usable(asked, text(found, "Lifecycle"))
    _, given, *rest = source.folder.split("/")
    mount = text(inner(found, "LustreConfiguration"), "MountName")
    if mount and given != mount:
        raise UserError(
            asked.where, f"{asked.source}: the mount name of {source.identity} is {mount!r}, not {given!r}",
            fix="/".join([f"fsx:{source.identity}", mount, *rest]),
        )  # fmt: skip


def _check_efs(asked: InputSpec, source: FileSystemSource, zones: Mapping[str, str], session: AwsSession) -> None:
    """A host reaches the file system by its mount target in the host's own zone."""
    client = session.client("efs", TRIES)
    found = _described(asked, client.describe_file_systems, session, FileSystemId=source.identity)
    _check_usable(asked, text(found, "LifeCycleState"))
    answer = call(client.describe_mount_targets, "DescribeMountTargets", FileSystemId=source.identity)
    targets = {text(each, "AvailabilityZoneName") for each in tables(answer, "MountTargets")}
    if without := sorted(subnet for subnet, zone in zones.items() if zone not in targets):
        raise UserError(
            asked.where,
            f"{asked.source} has no mount target in the zone of {', '.join(f'{each} ({zones[each]})' for each in without)}",
            allowed=f"subnets in {', '.join(sorted(targets)) or 'no zone: it has no mount target at all'}",
            fix="make a mount target there, or name other --subnets",
        )


def _described(asked: InputSpec, describe: Callable[..., Answer], session: AwsSession, **named: object) -> Answer:
    """The file system. Raises UserError if there is none, and ApiError."""
    try:
        listed = tables(call(describe, "DescribeFileSystems", **named), "FileSystems")
    except ApiError as error:
        if error.code != ABSENT:
            raise
        listed = ()
    if not listed:
        raise UserError(
            asked.where, f"{asked.source} does not exist in {session.region}", fix="check the ID and --region"
        )
    return listed[0]


def _check_usable(asked: InputSpec, state: str) -> None:
    if state and state not in USABLE:
        raise UserError(asked.where, f"{asked.source} is {state.lower()}", allowed="a file system that is available")
