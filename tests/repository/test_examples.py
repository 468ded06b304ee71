"""The request of examples/create_training_job.py is one that AWS's own service model takes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT

botocore = pytest.importorskip("botocore", reason="boto3 is not installed")


def test_the_raw_request_is_valid_and_says_what_the_launcher_reads(tmp_path):
    from botocore.session import get_session
    from botocore.validate import ParamValidator

    argv = ["--image-uri", "1.dkr.ecr.eu-west-1.amazonaws.com/algorun:1", "--role", "arn:aws:iam::123456789012:role/x"]
    argv += ["--code", "s3://bucket/sourcedir.tar.gz", "--output", "s3://bucket/out", "--dry-run"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "create_training_job.py"), *argv],
        capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path,
    )  # fmt: skip
    request = json.loads(done.stdout)
    model = get_session().get_service_model("sagemaker").operation_model("CreateTrainingJob")
    assert not ParamValidator().validate(request, model.input_shape).generate_report()
    (tmp_path / "input" / "config").mkdir(parents=True)
    (tmp_path / "input" / "config" / "resourceconfig.json").write_text('{"hosts": ["a", "b"], "current_host": "a"}')
    (tmp_path / "input" / "config" / "hyperparameters.json").write_text(json.dumps(request["HyperParameters"]))
    from algorun.job.config import Request, read

    job = read(Request(from_job=True), {"SAGEMAKER_BASE_DIR": str(tmp_path)})
    assert (job.launch.engine.value, job.setup.uri) == ("torchrun", "s3://bucket/sourcedir.tar.gz")
    assert job.entry.args == ("--epochs", "3", "--lr", "0.1")
