"""The format of a client's request: one number in the launcher, the client and the image's label."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from algorun.common import REQUEST_FORMAT
from algorun.common.errors import UserError
from algorun.job import job_input
from algorun.job.request import LaunchRequest
from algorun_client.request.model import FORMAT, FORMAT_PER_GPU, FORMAT_TUNED

ROOT = Path(__file__).resolve().parents[3]


def environ(tmp_path: Path, text: str) -> dict[str, str]:
    return {"SAGEMAKER_BASE_DIR": str(tmp_path), "ALGORUN_REQUEST_FORMAT": text}


@pytest.mark.parametrize("text", ["", "1", str(REQUEST_FORMAT)])
def test_a_plain_job_and_a_known_format_are_read(text, tmp_path):
    assert job_input.parse(LaunchRequest(), environ(tmp_path, text)).resources.hosts == ("algo-1",)


def test_a_newer_request_is_refused_before_anything_of_it_is_read(tmp_path):
    (tmp_path / "input" / "config").mkdir(parents=True)
    (tmp_path / "input" / "config" / "hyperparameters.json").write_text("written for a newer launcher")
    (tmp_path / "input" / "config" / "resourceconfig.json").write_text('{"hosts": ["a"], "current_host": "a"}')
    asked = REQUEST_FORMAT + 1
    with pytest.raises(UserError) as caught:
        job_input.parse(LaunchRequest(), environ(tmp_path, str(asked)))
    assert caught.value.code == 64
    assert str(caught.value) == (
        f"ALGORUN_REQUEST_FORMAT: the request has format {asked}, and this image's algorun knows no format above "
        f"{REQUEST_FORMAT}; fix: use an image of the client's version or newer"
    )


@pytest.mark.parametrize("text", ["0", "-1", "one", "1.0", "9" * 5000])
def test_what_is_no_format_is_refused(text, tmp_path):
    with pytest.raises(UserError, match="ALGORUN_REQUEST_FORMAT: .* is not a whole number"):
        job_input.parse(LaunchRequest(), environ(tmp_path, text))


def test_the_image_and_the_client_say_the_launchers_number():
    label = re.findall(r'org\.algorun\.request-format="(\d+)"', (ROOT / "Dockerfile").read_text())
    assert label == [str(REQUEST_FORMAT)]
    assert max(FORMAT, FORMAT_PER_GPU, FORMAT_TUNED) == REQUEST_FORMAT
