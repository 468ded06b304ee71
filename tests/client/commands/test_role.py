"""The policies that `algorun role` prints are narrow, and cover the calls that the client makes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import algorun_client
from algorun_client.commands.main import main

PLACE = ("--bucket", "my-bucket", "--project", "images", "--region", "eu-west-1")


def policy(capsys, *words: str) -> list[dict]:
    assert main(["role", *PLACE, *words], {}) == 0
    return json.loads(capsys.readouterr().out)["Statement"]


@pytest.mark.parametrize("whom", ["job", "client"])
def test_no_right_is_for_everything(capsys, whom):
    statements = policy(capsys, "--for", whom, "--role", "Job", "--kms-key", "arn:aws:kms:eu-west-1:1:key/k")
    by_name = {each["Sid"]: each for each in statements}
    assert all("*" not in action for each in statements for action in each["Action"])
    assert by_name["Objects"]["Resource"] == "arn:aws:s3:::my-bucket/images/*"
    assert by_name["Bucket"]["Resource"] == "arn:aws:s3:::my-bucket"
    assert by_name["Key"]["Resource"] == "arn:aws:kms:eu-west-1:1:key/k"
    everything = {each["Sid"] for each in statements if each["Resource"] == "*"}
    assert everything <= {"Metrics", "Registry", "Lists", "Figures"}  # AWS knows no resource for these
    if whom == "client":
        assert by_name["PassRole"]["Resource"] == "arn:aws:iam::*:role/Job"
        assert by_name["PassRole"]["Condition"]["StringEquals"] == {"iam:PassedToService": "sagemaker.amazonaws.com"}


def test_the_clients_rights_cover_its_calls_of_sagemaker_and_logs(capsys):
    allowed = {action for each in policy(capsys, "--for", "client") for action in each["Action"]}
    calls = Path(algorun_client.__file__).with_name("target").joinpath("aws.py").read_text()
    for name in re.findall(r'"((?:Create|Describe|Stop|List)(?:Training|Processing)Jobs?)"', calls):
        assert f"sagemaker:{name}" in allowed
    assert {"logs:DescribeLogStreams", "logs:GetLogEvents", "iam:GetRole", "cloudwatch:GetMetricData"} <= allowed


def test_only_sagemaker_may_take_the_role(capsys):
    (statement,) = policy(capsys, "--for", "trust")
    assert (statement["Principal"], statement["Action"]) == ({"Service": "sagemaker.amazonaws.com"}, "sts:AssumeRole")


def test_a_vpc_needs_rights_on_interfaces(capsys):
    assert "Vpc" in {each["Sid"] for each in policy(capsys, "--vpc")}
    assert "Vpc" not in {each["Sid"] for each in policy(capsys)}
