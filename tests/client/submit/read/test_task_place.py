"""Where a task is kept."""

from __future__ import annotations

import argparse

import pytest

from algorun.common.errors import UserError
from algorun_client.submit.read import task_place

FILE = """
project = "top"
bucket = "one"
[task.train]
bucket = "two"
prefix = "team"
[task.data]
project = "other"
"""


def options(**given):
    return argparse.Namespace(
        **{
            "file": "",
            "where": None,
            "profile": "",
            "region": "",
            "project": "",
            "bucket": "",
            "prefix": "",
            "job": "x",
        }
        | given
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('where = "lokal"', "algorun.toml where: 'lokal' is unknown; allowed: aws, local; fix: did you mean 'local'?"),
        ("bucket = 3", "algorun.toml bucket: 3 is not a text"),
        ('buket = "a"', "algorun.toml: unknown key 'buket'"),
        ("[task.x]\nprofile = 'a'", r"algorun.toml \[task.x\]: unknown key 'profile'"),
        ("a = [", "algorun.toml: is not TOML"),
    ],
)
def test_a_job_file_is_read_as_strictly_as_by_submit(tmp_path, text, error):
    """A place with a spelling mistake was AWS."""
    (tmp_path / "algorun.toml").write_text(text)
    with pytest.raises(UserError, match=error.replace("?", r"\?")):
        task_place.read_place(options(), {}, tmp_path)


def test_options_win(tmp_path):
    (tmp_path / "algorun.toml").write_text('where = "aws"\nregion = "eu-west-1"\n')
    known = task_place.read_place(options(where="local"), {"ALGORUN_BUCKET": "s3://b/"}, tmp_path)
    assert (known.where, known.region, known.bucket) == ("local", "eu-west-1", "b")


@pytest.mark.parametrize(
    ("region", "bucket", "found"),
    [("us-east-1", "", "east"), ("us-west-2", "", ""), ("us-west-1", "", "own"), ("us-west-2", "named", "named"), ("eu-west-1", "", "east")],
)  # fmt: skip
def test_in_another_region_of_the_job_file_the_bucket_is_that_of_submit(tmp_path, region, bucket, found):
    """That of the preferred region is no bucket of the others. A region that the file does not list stands alone."""
    (tmp_path / "algorun.toml").write_text(
        'region = ["us-east-1", "us-west-2", "us-west-1"]\nbucket = "east"\n[regions.us-west-1]\nbucket = "own"\n'
    )
    known = task_place.read_place(options(region=region, bucket=bucket), {"ALGORUN_BUCKET": "east"}, tmp_path)
    assert (known.region, known.bucket) == (region, found)


@pytest.mark.parametrize(
    ("job", "found"),
    [("train", ("top", "two", "team")), ("data", ("other", "one", "")), ("top-train-0001-abcdef", ("top", "one", ""))],
)
def test_a_tasks_own_table_counts_as_for_submit(tmp_path, job, found):
    (tmp_path / "algorun.toml").write_text(FILE)
    known = task_place.read_place(options(job=job), {}, tmp_path)
    assert (known.project, known.bucket, known.prefix) == found
