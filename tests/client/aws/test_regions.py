"""A region that does not exist is named before any call: its address would be looked for during half a minute."""

from __future__ import annotations

import pytest

from algorun.common.errors import UserError
from algorun_client.aws import aws_session


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


@pytest.mark.parametrize(
    ("region", "fix"),
    [
        ("us-esat-1", "did you mean .*us-east-1"),
        ("EU-WEST-1", "did you mean eu-west-1"),
        ("nonsense region", "such as us-east-1"),
        ("eu-west-1a", "did you mean .*eu-west-1"),  # an availability zone
    ],
)
def test_a_region_that_does_not_exist(region, fix):
    with pytest.raises(UserError, match=f"^--region: {region!r} is not a region of SageMaker; .*; fix: {fix}") as error:
        aws_session.open_session(region=region)
    assert error.value.code == 64


@pytest.mark.parametrize("region", ["us-east-1", "ap-southeast-2", "cn-north-1", "us-gov-west-1"])
def test_regions_of_all_partitions_are_known(region):
    assert aws_session.open_session(region=region).region == region


def test_a_server_that_is_not_aws_s_may_stand_in_any_region(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", "http://127.0.0.1:1")
    assert aws_session.open_session(region="lab-1").region == "lab-1"
