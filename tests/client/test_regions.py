"""Several regions by the test server, which really runs the jobs: capacity, quota, images, inputs, and one global batch."""

from __future__ import annotations

import contextlib
import json
import re

import boto3
import pytest

from algorun.common import REQUEST_FORMAT
from algorun_client.submit.look_up.look_up import LABEL
from tests.client.places import BUCKET
from tests.client.test_chains import ON_THE_SERVER, laptop, server
from tests.client.test_job_series import described, jobs_of, until

__all__ = ["laptop", "server"]

FIRST, SECOND = "us-east-1", "us-west-2"
REGIONS = ("--region", f"{FIRST},{SECOND}")
ROLE = ("--role", "arn:aws:iam::123456789012:role/Job", "--task", "train")
LINE = ("--image", "algorun:test", *ROLE)
THERE = f"sagemaker-{SECOND}-123456789012"
TYPES = ("--instance", "ml.m5.large,ml.c5.xlarge")
NO_ROOM = {"without_capacity": f"ml.m5.large@{FIRST}", "without_quota": f"ml.c5.xlarge@{FIRST}"}


@pytest.fixture(autouse=True)
def buckets(laptop):
    """The default bucket of the second region, and a bucket with an input in each."""
    where = {"CreateBucketConfiguration": {"LocationConstraint": SECOND}}
    s3 = boto3.client("s3", region_name=SECOND)
    for bucket in (THERE, "data-there"):
        with contextlib.suppress(s3.exceptions.BucketAlreadyOwnedByYou):
            s3.create_bucket(Bucket=bucket, **where)
    for bucket in (BUCKET, "data-there"):
        s3.put_object(Bucket=bucket, Key="set/x", Body=f"from {bucket}".encode())


def keys(bucket: str, laptop) -> list[str]:
    found = boto3.client("s3").list_objects_v2(Bucket=bucket, Prefix=f"{laptop.project}/")
    return [each["Key"] for each in found.get("Contents", ())]


@pytest.mark.slow
@ON_THE_SERVER
def test_without_room_in_the_first_region_the_job_runs_in_the_second(laptop, server, capfd):
    laptop.file(
        f'price = {{ "ml.m5.large" = 2 }}\nin.a = "s3://{BUCKET}/set/"\n'
        f'[regions.{SECOND}]\nin.a = "s3://data-there/set/"\nprice = {{ "ml.m5.large" = 3600 }}\nbucket = "{THERE}"\n'
    )
    line = ("submit", *REGIONS, *LINE, *TYPES, "--json", "--shell", 'echo "runs with $(cat $SM_CHANNEL_A/x)"')
    server.faults(**NO_ROOM)
    assert laptop(*line) == 0
    events = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    told = [(each["tried"], each["next"], each["rate"]) for each in events if each["event"] == "next_hosts"]
    assert told == [
        ("1 x ml.m5.large", "1 x ml.c5.xlarge", None),
        (f"1 x ml.c5.xlarge in {FIRST}", f"1 x ml.m5.large in {SECOND}", 3600.0),
    ]
    assert any("runs with from data-there" in each["text"] for each in events if each["event"] == "line")
    lacking, ran = map(described, jobs_of(laptop))
    assert (lacking.failure[:13], ran.status) == ("CapacityError", "Completed")
    assert any(key.endswith("/request.json") for key in keys(THERE, laptop))
    server.faults()
    assert laptop(*line) == 0
    assert '"event": "done"' in capfd.readouterr().out
    assert laptop("status", "--region", SECOND, "train") == 0  # with the price of that region
    said = capfd.readouterr().out
    assert "(1 host at 3600 an hour)" in said, said
    assert laptop("status", *REGIONS, "train") == 64
    assert "--region: names 2 regions (us-east-1, us-west-2), and this command looks at one" in capfd.readouterr().err


@ON_THE_SERVER
def test_what_a_region_lacks_is_one_error_before_anything_is_created(laptop, server, capfd):
    laptop.file("")
    image = server.image(boto3, "regional", **{LABEL: str(REQUEST_FORMAT)})
    line = ("submit", *REGIONS, *ROLE, *TYPES, "--shell", "true")

    def refused(*words: str) -> str:
        assert laptop(*line[:-2], *words, *line[-2:]) == 64
        error = capfd.readouterr().err
        assert error.count("\n") == 1, error
        return error

    there = image.replace(FIRST, SECOND)
    said = refused("--image", image)
    assert f"error: --image: {there} does not exist: " in said
    assert f"build.sh push --region {SECOND}" in said
    server.image(boto3, "regional", region=SECOND, **{LABEL: str(REQUEST_FORMAT), "other": "yes"})
    said = refused("--image", image)
    assert f"--image: {there} is another image (sha256:" in said
    assert f"than the one in {FIRST} (sha256:" in said
    pinned = f"{image.rpartition(':')[0]}@sha256:{'0' * 64}"
    assert f"--image: {pinned} does not exist: " in refused("--image", pinned)
    said = refused("--image", "algorun:test", "--in", f"a=s3://{BUCKET}/set/")
    assert f"--in a: s3://{BUCKET}/set/ lies in {FIRST}, and SageMaker reads inputs of a job in {SECOND}" in said
    assert f"`in.a` in [regions.{SECOND}] of the job file" in said
    laptop.file(f'[regions.{SECOND}]\nbucket = "absent"\n')
    said = refused("--image", "algorun:test")
    assert (
        f"--bucket: absent does not exist, and a job in {SECOND} needs one there; fix: --create-bucket, or `bucket`"
        in said
    )
    assert jobs_of(laptop) == []
    assert keys(BUCKET, laptop) == keys(THERE, laptop) == []


@pytest.mark.slow
@ON_THE_SERVER
def test_the_same_image_in_both_regions_and_a_dry_run(laptop, server, capfd):
    laptop.file("")
    labels = {LABEL: str(REQUEST_FORMAT)}
    image, _ = (server.image(boto3, "both", region=region, **labels) for region in (FIRST, SECOND))
    line = ("submit", *REGIONS, "--image", image, *ROLE, "--instance", "ml.m5.large")
    assert laptop(*line, "--dry-run", "--shell", "true") == 0
    said = capfd.readouterr()
    assert f"the request for {FIRST}, the region that submit begins with" in said.err
    assert jobs_of(laptop) == []
    server.faults(without_quota=f"ml.m5.large@{FIRST}")
    assert laptop(*line, "--shell", "true") == 0
    (job,) = jobs_of(laptop)
    sent = boto3.client("sagemaker").describe_training_job(TrainingJobName=job)["AlgorithmSpecification"]
    assert sent["TrainingImage"].startswith(image.replace(FIRST, SECOND).partition(":")[0] + "@sha256:")
    assert laptop(*line, "--dry-run", "--shell", "true") == 0
    assert f"the request for {SECOND}, the region that submit begins with" in capfd.readouterr().err


@pytest.mark.slow
@ON_THE_SERVER
def test_a_client_that_is_killed_after_the_switch_joins_the_job(laptop, server, capfd):
    laptop.file(f'image = "algorun:test"\nrole = "{ROLE[1]}"\n')
    line = ("submit", *REGIONS, *ROLE[2:], *TYPES, "--shell", "sleep 4")
    server.faults(**NO_ROOM)
    client = laptop.command(*line)
    until(lambda: len(jobs_of(laptop)) == 2)
    client.kill()
    assert client.code() == -9
    server.faults()
    assert laptop(*line) == 0
    assert "runs already" in capfd.readouterr().err
    assert len(jobs_of(laptop)) == 2


@pytest.mark.slow
@ON_THE_SERVER
def test_ddp_in_the_second_region_has_the_same_global_batch(laptop, server, capfd):
    laptop.file("")
    small = ("--width", "16", "--depth", "1", "--epochs", "1", "--batch-size", "4", "--image-size", "8")
    words = ("--slots", "2", "--max-run", "5m", "ddp", "--model", "convnet", *small)
    types = ("--instance", "ml.m5.largex2,ml.c5.xlargex1")
    server.faults(
        without_capacity=f"ml.m5.large,ml.c5.xlarge@{FIRST}",  # the second type of the second region is left
    )
    assert laptop("submit", *REGIONS, *LINE, *types, *words) == 0
    assert re.findall(r"global batch: .*", capfd.readouterr().out) == [
        "global batch: 16 = 4 per rank x 2 ranks x 2 passes"
    ]
    assert sorted(described(job).hosts.groups[0] for job in jobs_of(laptop)) == [
        ("ml.c5.xlarge", 1), ("ml.c5.xlarge", 1), ("ml.m5.large", 2), ("ml.m5.large", 2),
    ]  # fmt: skip
