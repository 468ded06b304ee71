"""Subnets, security groups and file systems are looked up before anything is made. Against moto's EC2, EFS and FSx."""

from __future__ import annotations

import secrets

import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from algorun.common.errors import UserError
from algorun_client.aws import aws_session
from algorun_client.submit.look_up import network
from tests.client.submit.specs import spec

REGION = "eu-west-1"


@pytest.fixture(scope="module")
def session():
    """One for all tests: each session would read EC2's description, which takes most of a test's time."""
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        for name, value in {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_CONFIG_FILE": "/none"}.items():
            patch.setenv(name, value)
        yield aws_session.open_session(region=REGION)


class Vpc:
    """Three subnets, each in a zone of its own, and a security group."""

    def __init__(self, session):
        self.ec2, self.efs, self.fsx = (session.client(name) for name in ("ec2", "efs", "fsx"))
        vpc = self.ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        self.subnets = [
            self.ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.0.{n}.0/24", AvailabilityZone=f"{REGION}{zone}")["Subnet"]["SubnetId"]
            for n, zone in enumerate("abc")
        ]  # fmt: skip
        self.group = self.ec2.create_security_group(VpcId=vpc, GroupName="g", Description="d")["GroupId"]

    def task(self, *inputs, subnets=None, groups=None):
        chosen = self.subnets[:2] if subnets is None else subnets
        named = {"subnets": chosen, "security_groups": groups or [self.group]}
        return spec("train.py", **{"in": [f"c{n}={each}" for n, each in enumerate(inputs)]}, **named)

    def new_efs(self, *subnets):
        made = self.efs.create_file_system(CreationToken=secrets.token_hex())["FileSystemId"]
        for subnet in subnets:
            self.efs.create_mount_target(FileSystemId=made, SubnetId=subnet)
        return made

    def new_fsx(self, kind="LUSTRE"):
        made = self.fsx.create_file_system(FileSystemType=kind, StorageCapacity=1200, SubnetIds=self.subnets[:1])
        return made["FileSystem"]["FileSystemId"]


@pytest.fixture
def vpc(session):
    return Vpc(session)


def refused(task, session, text):
    with pytest.raises(UserError, match=text) as error:
        network.check(task, session)
    assert error.value.code == 64
    assert error.value.fix or error.value.allowed


def test_subnets_and_groups_that_exist_are_fine(vpc, session):
    network.check(vpc.task(), session)


def test_a_subnet_that_is_missing_is_one_error(vpc, session):
    refused(vpc.task(subnets=[vpc.subnets[0], "subnet-0123456789abcdef0"]), session, r"--subnets: .*subnet-.* does not exist .region eu-west-1")  # fmt: skip


def test_a_security_group_that_is_missing_is_one_error(vpc, session):
    refused(vpc.task(groups=["sg-0123456789abcdef0"]), session, "--security-groups: .*sg-0123456789abcdef0")


def test_subnets_of_two_vpcs_are_one_error(vpc, session):
    other = Vpc(session)
    refused(
        vpc.task(subnets=[vpc.subnets[0], other.subnets[0]]),
        session,
        "--subnets: belong to several VPCs: subnet-.* in vpc-",
    )


def test_efs_has_to_have_a_mount_target_in_the_zone_of_each_subnet(vpc, session):
    made = vpc.new_efs(*vpc.subnets[:2])
    network.check(vpc.task(f"efs:{made}/data"), session)
    third = rf"--in c0: efs:{made}/data has no mount target in the zone of {vpc.subnets[2]} \(eu-west-1c\); allowed: subnets in eu-west-1a, eu-west-1b"  # fmt: skip
    refused(vpc.task(f"efs:{made}/data", subnets=vpc.subnets), session, third)


def test_efs_without_any_mount_target(vpc, session):
    refused(vpc.task(f"efs:{vpc.new_efs()}"), session, "no zone: it has no mount target at all")


@pytest.mark.parametrize("source", ["efs:fs-01234567/a", "fsx:fs-0123456789abcdef0/fsx/a"])
def test_a_file_system_that_is_missing_is_one_error(vpc, session, source):
    refused(vpc.task(source), session, f"--in c0: {source} does not exist in eu-west-1; fix: check the ID and --region")


def lustre(session, monkeypatch, **changed):
    """What FSx answers; moto knows neither states nor mount names."""
    found = {
        "FileSystemType": "LUSTRE", "Lifecycle": "AVAILABLE", "LustreConfiguration": {"MountName": "bv5mzbmv"}, **changed
    }  # fmt: skip
    client_of = session.client

    def client(service, *arguments, **named):
        made = client_of(service, *arguments, **named)
        if service == "fsx":
            made.describe_file_systems = lambda **_: {"FileSystems": [found]}
        return made

    monkeypatch.setattr(session, "client", client)


FSX = "fsx:fs-0123456789abcdef0"


def test_a_wrong_mount_name_is_corrected(vpc, session, monkeypatch):
    lustre(session, monkeypatch)
    network.check(vpc.task(f"{FSX}/bv5mzbmv/a/b"), session)
    refused(vpc.task(f"{FSX}/fsx/a/b"), session, f"the mount name of fs-0123456789abcdef0 is 'bv5mzbmv', not 'fsx'; fix: {FSX}/bv5mzbmv/a/b")  # fmt: skip


def test_a_file_system_that_is_not_ready_or_not_lustre(vpc, session, monkeypatch):
    lustre(session, monkeypatch, Lifecycle="CREATING")
    refused(vpc.task(f"{FSX}/bv5mzbmv"), session, "is creating; allowed: a file system that is available")
    lustre(session, monkeypatch, FileSystemType="OPENZFS")
    refused(vpc.task(f"{FSX}/bv5mzbmv"), session, "is a file system of OPENZFS; allowed: FSx for Lustre, EFS")


def test_lustre_of_moto_is_found(vpc, session):
    network.check(vpc.task(f"fsx:{vpc.new_fsx()}/bv5mzbmv"), session)


@pytest.mark.parametrize(
    ("code", "is_an_error"),
    [("UnauthorizedOperation", False), ("ServiceUnavailable", False), ("ExpiredToken", True)],
)
def test_who_may_not_ask_is_not_stopped(vpc, session, monkeypatch, code, is_an_error):
    def refuse(**_):
        raise ClientError({"Error": {"Code": code, "Message": "no"}}, "DescribeSubnets")

    client_of = session.client

    def client(*arguments, **named):
        made = client_of(*arguments, **named)
        made.describe_subnets = refuse
        return made

    monkeypatch.setattr(session, "client", client)
    if is_an_error:
        with pytest.raises(UserError) as error:
            network.check(vpc.task(), session)
        assert error.value.code == 71
    else:
        network.check(vpc.task(), session)
