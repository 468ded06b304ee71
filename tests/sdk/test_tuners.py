"""Jobs of SageMaker's tuner, asked for by the SDKs v2 and v3, in containers of the image. Local modes have no tuner, so a
server that boto3 takes for SageMaker runs them."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from sdk_docker import IMAGE
from sdk_environment import PYTHON, environment
from tuner_rows import TUNERS, TunerRow

from tests.sagemaker_server.server_process import ACCOUNT, REGION, ServerProcess, running

pytestmark = pytest.mark.docker
HERE = Path(__file__).resolve().parent
ROLE = f"arn:aws:iam::{ACCOUNT}:role/algorun-test"
CLIENT_S, JOBS_S = 120.0, 240.0
REGEX = r"val_loss=([0-9.]+);"


@pytest.fixture(scope="module")
def server(ready: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(tmp_path_factory.mktemp("server"), "--docker", "--stop-grace-s", "5") as made:
        session(made).client("s3").create_bucket(Bucket="algorun")
        trust = {"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
        session(made).client("iam").create_role(RoleName=ROLE.rpartition("/")[2], AssumeRolePolicyDocument=policy)
        yield made


def session(server: ServerProcess) -> Any:
    return Boto(server.environ())


class Boto:
    """boto3's clients against the server, without a change of this process's variables."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._environ = environ

    def client(self, service: str) -> Any:
        url = self._environ.get(f"AWS_ENDPOINT_URL_{service.upper()}", self._environ["AWS_ENDPOINT_URL"])
        return boto3.client(
            service, region_name=REGION, endpoint_url=url, aws_access_key_id="x", aws_secret_access_key="x"
        )


def tuned(server: ServerProcess, work: Path, client: str, *, hosts: int = 1, regex: str = REGEX, **options: Any) -> Any:
    """Runs a tuner to its end; returns its description."""
    source = work / "source"
    source.mkdir()
    shutil.copy(HERE / "scripts" / "tuned.py", source)
    job = {
        "name": f"t-{secrets.token_hex(4)}",
        "image": IMAGE,
        "role": ROLE,
        "hosts": hosts,
        "source": str(source),
        "program": "tuned.py",
        "regex": regex,
        "options": options,
    }
    (work / "job.json").write_text(json.dumps(job))
    environ = environment(work, client) | server.environ()
    argv = [str(PYTHON[client]), str(HERE / f"tuner_{client}.py"), str(work / "job.json"), str(work / "result.json")]
    done = subprocess.run(argv, cwd=work, env=environ, capture_output=True, text=True, timeout=CLIENT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    name = json.loads((work / "result.json").read_text())["tuner"]
    sagemaker = session(server).client("sagemaker")
    deadline = time.monotonic() + JOBS_S
    while True:
        state = sagemaker.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName=name)
        if state["HyperParameterTuningJobStatus"] in ("Completed", "Failed"):
            return state
        assert time.monotonic() < deadline, state
        time.sleep(0.5)


def lines(server: ServerProcess, job: str) -> list[str]:
    from algorun_client.local.log_reading import LocalLogs

    logs, group = LocalLogs(server.root), "/aws/sagemaker/TrainingJobs"
    found = []
    for stream in logs.describe_log_streams(logGroupName=group, logStreamNamePrefix=f"{job}/")["logStreams"]:
        answer = logs.get_log_events(logGroupName=group, logStreamName=stream["logStreamName"], startFromHead=True)
        found += [event["message"] for event in answer["events"]]
    return found


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.id, marks=[] if row.quick else [pytest.mark.slow]) for row in TUNERS]
)
def test_a_tuner_finds_its_best_job(
    server: ServerProcess, tmp_path: Path, row: TunerRow, request: pytest.FixtureRequest
) -> None:
    began = time.monotonic()
    state = tuned(server, tmp_path, row.client, hosts=row.hosts, **row.options)
    request.node.sdk_seconds = time.monotonic() - began
    assert state["TrainingJobStatusCounters"]["Completed"] == 3, state
    assert state["ObjectiveStatusCounters"]["Succeeded"] == 3, state
    best = state["BestTrainingJob"]
    assert float(best["TunedHyperParameters"]["lr"].strip('"')) == pytest.approx(0.1)
    assert best["FinalHyperParameterTuningJobObjectiveMetric"]["Value"] == pytest.approx(0.0, abs=1e-6)
    text = "\n".join(lines(server, best["TrainingJobName"]))
    assert "optimizer=adamw epochs=2" in text  # the second of three points
    assert f"world={row.world}" in text.split()
    assert "algorun 0." in text  # our launcher started it


@pytest.mark.slow
def test_a_tuner_without_its_objective_in_the_log_fails(server: ServerProcess, tmp_path: Path) -> None:
    state = tuned(server, tmp_path, "v2", regex=r"accuracy=([0-9.]+)")
    assert (state["HyperParameterTuningJobStatus"], state["ObjectiveStatusCounters"]["Failed"]) == ("Failed", 3)


@pytest.mark.slow
def test_a_tuner_of_v3_with_a_command_is_told_that_it_is_dropped(server: ServerProcess, tmp_path: Path) -> None:
    state = tuned(server, tmp_path, "v3", command="exec algorun train", regex=r"loss=([0-9.]+)")
    text = "\n".join(
        line
        for job in session(server).client("sagemaker").list_training_jobs_for_hyper_parameter_tuning_job(
            HyperParameterTuningJobName=state["HyperParameterTuningJobName"]
        )["TrainingJobSummaries"]
        for line in lines(server, job["TrainingJobName"])
    )  # fmt: skip
    assert text.count("SDK v3's tuner drops SourceCode(command=..)") == 3, text[-3000:]
