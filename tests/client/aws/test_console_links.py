"""Addresses of AWS's console, as it shows them in a browser."""

from __future__ import annotations

import re

import boto3
import pytest

from algorun_client.aws.console_links import links
from algorun_client.request.model import Kind
from algorun_report.folder.read import CONSOLE


def test_the_addresses_of_a_training_and_a_processing_job():
    assert links(Kind.TRAINING, "vision-train-0001-b1931a", "eu-west-1") == {
        "console": "https://eu-west-1.console.aws.amazon.com/sagemaker/home?region=eu-west-1#/jobs/vision-train-0001-b1931a",
        "logs": "https://eu-west-1.console.aws.amazon.com/cloudwatch/home?region=eu-west-1#logsV2:log-groups/log-group/"
        "$252Faws$252Fsagemaker$252FTrainingJobs$3FlogStreamNameFilter$3Dvision-train-0001-b1931a$252F",
    }
    found = links(Kind.PROCESSING, "j", "us-east-1")
    assert found["console"].endswith("#/processing-jobs/j")
    assert "$252FProcessingJobs$3F" in found["logs"]


@pytest.mark.parametrize(
    ("partition", "console"),
    [
        ("aws", "console.aws.amazon.com"),
        ("aws-cn", "console.amazonaws.cn"),
        ("aws-us-gov", "console.amazonaws-us-gov.com"),
        ("aws-iso", ""),
        ("aws-iso-b", ""),
    ],
)
def test_every_region_has_its_partition_s_console_or_none(partition, console):
    for region in boto3.Session().get_available_regions("sagemaker", partition):
        found = links(Kind.TRAINING, "j", region)
        assert bool(found) == bool(console), region
        for address in found.values():
            assert address.startswith(f"https://{region}.{console}/")
            assert CONSOLE.match(address), "or the page of the job would not link it"
            assert re.fullmatch(r"[!-~]+", address)
