"""Whether subnets, security groups and file systems exist and fit together. Reads only.

SageMaker finds out minutes later, once it has hosts. A caller who may not ask, or has no way to EC2, is not stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from algorun.common.errors import UserError
from algorun_client.aws.api import Answer
from algorun_client.aws.aws_session import AwsSession, call
from algorun_client.aws.fields import inner, required, tables, text
from algorun_client.common.errors import ApiError
from algorun_client.common.refusals import Refusal, explained, refusal
from algorun_client.submit.read.spec import FileSystem, FileSystemSource, InputSpec, Network, TaskSpec

TRIES = 3  # SageMaker checks all of this again, so nobody is kept waiting
USABLE = ("available", "AVAILABLE", "updating", "UPDATING")
MISSING = ("NotFound", "Malformed")  # the ends of EC2's codes for an ID that it does not know


def check(spec: TaskSpec, session: AwsSession) -> None:
    """Raises UserError for a subnet, a security group or a file system that does not exist, or that no host can reach."""
    if not spec.network.subnets:  # then `rules` refuses file systems
        return
    try:
        zones = _subnet_zones(spec.network, session)
        _check_groups(spec.network, session)
        for each in spec.inputs:
            if each.file_system is not None:
                CHECKS[each.file_system.system](each, each.file_system, zones, session)
    except ApiError as error:
        if refusal(error) in (Refusal.EXPIRED, Refusal.CREDENTIALS):
            raise explained(error) from None


def _subnet_zones(network: Network, session: AwsSession) -> dict[str, str]:
    """The availability zone of each subnet."""
    found = _existing("--subnets", network.subnets, session, "DescribeSubnets", "SubnetIds")
    listed = tables(found, "Subnets")
    vpcs = {text(each, "VpcId"): text(each, "SubnetId") for each in listed}
    if len(vpcs) > 1:
        places = ", ".join(f"{subnet} in {vpc}" for vpc, subnet in sorted(vpcs.items()))
        raise UserError("--subnets", f"belong to several VPCs: {places}", fix="name subnets of one VPC")
    return {text(each, "SubnetId"): text(each, "AvailabilityZone") for each in listed}


def _check_groups(network: Network, session: AwsSession) -> None:
    _existing("--security-groups", network.security_groups, session, "DescribeSecurityGroups", "GroupIds")


def _existing(where: str, ids: Sequence[str], session: AwsSession, operation: str, key: str) -> Answer:
    """What EC2 says of them. Raises UserError for an ID that it does not know, and ApiError."""
    client = session.client("ec2", TRIES)
    methods: Mapping[str, Callable[..., Answer]] = {
        "DescribeSubnets": client.describe_subnets,
        "DescribeSecurityGroups": client.describe_security_groups,
    }
    try:
        return call(methods[operation], operation, **{key: list(ids)})
    except ApiError as error:
        if error.code.endswith(MISSING):
            raise UserError(
                where, f"{error.message} (region {session.region})", fix="check the IDs and --region"
            ) from None
        raise


def _check_fsx(asked: InputSpec, source: FileSystemSource, zones: Mapping[str, str], session: AwsSession) -> None:
    client = session.client("fsx", TRIES)
    found = _described(asked, client.describe_file_systems, {"FileSystemIds": [source.identity]}, session)
    kind = required(found, "FileSystemType")
    if kind != "LUSTRE":
        raise UserError(asked.where, f"{asked.source} is a file system of {kind}", allowed="FSx for Lustre, EFS")
    _check_usable(asked, text(found, "Lifecycle"))
    mount, given = text(inner(found, "LustreConfiguration"), "MountName"), source.folder.split("/")[1]
    if mount and given != mount:
        rest = "/".join(source.folder.split("/")[2:])
        raise UserError(
            asked.where, f"{asked.source}: the mount name of {source.identity} is {mount!r}, not {given!r}",
            fix="/".join(filter(None, [f"fsx:{source.identity}", mount, rest])),
        )  # fmt: skip


def _check_efs(asked: InputSpec, source: FileSystemSource, zones: Mapping[str, str], session: AwsSession) -> None:
    """A host reaches the file system by its mount target in the host's own zone."""
    client = session.client("efs", TRIES)
    found = _described(asked, client.describe_file_systems, {"FileSystemId": source.identity}, session)
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


CHECKS: Mapping[
    FileSystem, Callable[[InputSpec, FileSystemSource, Mapping[str, str], AwsSession], None]
] = {FileSystem.FSX: _check_fsx, FileSystem.EFS: _check_efs}  # fmt: skip
ABSENT = ("FileSystemNotFound", "FileSystemNotFoundFault", "BadRequest")


def _described(
    asked: InputSpec, describe: Callable[..., Answer], arguments: Mapping[str, object], session: AwsSession
) -> Answer:
    """The file system. Raises UserError if there is none, and ApiError."""
    try:
        listed = tables(call(describe, "DescribeFileSystems", **arguments), "FileSystems")
    except ApiError as error:
        if error.code not in ABSENT:
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
