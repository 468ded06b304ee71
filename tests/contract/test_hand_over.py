"""ALGORUN_ENGINE=toolkit: AWS's own launcher gets the job, unchanged."""

from __future__ import annotations

import importlib.util
import json

import pytest

from tests.conftest import algorun

there = importlib.util.find_spec("sagemaker_training") is not None


@pytest.mark.skipif(not there, reason="sagemaker-training is not installed")
def test_the_toolkit_runs_the_job(tmp_path):
    base = tmp_path / "ml"
    for folder in ("input/config", "input/data", "code", "model", "output/data", "output/intermediate"):
        (base / folder).mkdir(parents=True)
    config = base / "input" / "config"
    (config / "resourceconfig.json").write_text(
        json.dumps({"hosts": ["localhost"], "current_host": "localhost", "network_interface_name": "lo"})
    )
    (config / "hyperparameters.json").write_text(json.dumps({"sagemaker_program": '"train.py"', "lr": "0.1"}))
    (config / "inputdataconfig.json").write_text("{}")
    (base / "code" / "train.py").write_text(
        "import os, sys\nopen(os.environ['SM_MODEL_DIR'] + '/seen', 'w').write(' '.join(sys.argv[1:]))\n"
        "assert 'ALGORUN_RANK' not in os.environ\n"
    )
    done = algorun(
        "train", cwd=tmp_path, ALGORUN_ENGINE="toolkit", SAGEMAKER_BASE_DIR=str(base), SM_STUDIO_LOCAL_MODE="true"
    )
    assert done.code == 0, done.text
    assert (base / "model" / "seen").read_text() == "--lr 0.1"
    assert "Invoking user script" in done.text  # the toolkit's own words
    assert (base / "output" / "success").exists()


@pytest.mark.skipif(there, reason="sagemaker-training is installed")
def test_a_missing_toolkit_is_one_clear_error(tmp_path):
    done = algorun("train", cwd=tmp_path, ALGORUN_ENGINE="toolkit")
    assert done.code == 64
    assert "sagemaker-training is not installed; fix: pip install sagemaker-training" in done.err
