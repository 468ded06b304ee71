"""Input channels: those of a training job, the inputs of a Processing job, and which of them are extracted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from algorun.common.errors import UserError
from algorun.job import channels
from algorun.job.config import prepared, read_config
from algorun.job.paths import Paths
from algorun.job.request import LaunchRequest
from algorun.plan import cluster, plan, render
from tests.conftest import PROGRAMS, machine


def training(
    base: Path, described: dict[str, object], environ: dict[str, str] | None = None, **hyperparameters: object
):
    config = base / "input" / "config"
    config.mkdir(parents=True, exist_ok=True)
    raw = {key: json.dumps(value) for key, value in {"sagemaker_program": "ddp", **hyperparameters}.items()}
    for name, value in (
        ("hyperparameters", raw), ("inputdataconfig", described), ("resourceconfig", {"hosts": ["a"], "current_host": "a"})
    ):  # fmt: skip
        (config / f"{name}.json").write_text(json.dumps(value))
    return read_config(LaunchRequest(from_job=True), {"SAGEMAKER_BASE_DIR": str(base), **(environ or {})})


def processing(base: Path, described: object, request: LaunchRequest | None = None, **environ: str):
    (base / "config").mkdir(parents=True, exist_ok=True)
    (base / "config" / "resourceconfig.json").write_text('{"hosts": ["a"], "current_host": "a"}')
    (base / "config" / "processingjobconfig.json").write_text(json.dumps(described))
    return read_config(request or LaunchRequest(target="ddp"), {"SAGEMAKER_BASE_DIR": str(base), **environ})


def text(config) -> str:
    found = machine()
    slots = cluster.assumed_slots(config, cluster.own_slots(config, found))
    return render.plan_text(plan.make(config, cluster.resolve(config, slots), found, PROGRAMS))


FILE = {"TrainingInputMode": "File"}


@pytest.mark.parametrize("how", ["hyperparameter", "setting", "both"])
def test_extraction_is_asked_for_by_hyperparameter_or_setting(how, tmp_path):
    environ = (
        {"ALGORUN_EXTRACT": '["val"]' if how == "both" else '["train", "train"]'} if how != "hyperparameter" else {}
    )
    own = {} if how == "setting" else {"algorun_extract": ["train"]}
    config = training(tmp_path, {"train": FILE, "val": {}}, environ, **own)
    assert config.setup is not None
    assert [(each.name, each.folder) for each in config.setup.extract] == [
        ("train", str(tmp_path / "input" / "data" / "train"))
    ]
    assert config.entry.kind == "bundled"  # known already; only the data has to be unpacked
    source = "ALGORUN_EXTRACT" if how == "setting" else "hyperparameter algorun_extract"
    assert f"unpack the archives of channel train in {tmp_path}/input/data/train" in text(config)
    assert f"# {source}" in text(config)
    assert prepared(config).setup is None


def test_an_empty_list_overrides_the_setting(tmp_path):
    assert training(tmp_path, {"train": FILE}, {"ALGORUN_EXTRACT": '["train"]'}, algorun_extract=[]).setup is None


@pytest.mark.parametrize("mode", ["FastFile", "Pipe"])
def test_a_channel_that_is_not_on_the_disk_cannot_be_extracted(mode, tmp_path):
    with pytest.raises(UserError) as caught:
        training(tmp_path, {"train": {"TrainingInputMode": mode}}, algorun_extract=["train"])
    assert str(caught.value) == (
        f"hyperparameter algorun_extract: channel 'train' has the input mode {mode}, so its files are not on this host's "
        "disk; allowed: channels of mode File; fix: give 'train' the input mode File, or do not extract it"
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ('["test"]', "the job has no channel 'test'; allowed: train"),
        ("train", "'train' is not a list of names; allowed: a list such as"),
        ('["train"', "is not a list of names"),
        ("[1]", "is not a list of names"),
    ],
)
def test_a_wrong_list_is_refused(given, says, tmp_path):
    with pytest.raises(UserError, match=says) as caught:
        training(tmp_path, {"train": FILE}, {"ALGORUN_EXTRACT": given})
    assert caught.value.where == "ALGORUN_EXTRACT"


INPUT = {"InputName": "data", "S3Input": {"LocalPath": "/opt/ml/processing/input/data", "S3InputMode": "File"}}


def test_the_inputs_of_a_processing_job_are_its_channels(tmp_path):
    more = [
        {"InputName": "elsewhere", "S3Input": {"LocalPath": "/data/x"}},
        {"InputName": "table", "DatasetDefinition": {"LocalPath": "/opt/ml/processing/table", "InputMode": "File"}},
        {"InputName": "app", "AppManaged": True, "S3Input": {"S3Uri": "s3://b/k"}},
    ]
    config = processing(tmp_path, {"ProcessingInputs": [INPUT, *more]}, ALGORUN_EXTRACT='["data"]')
    assert {name: each.folder for name, each in config.input.channels.items()} == {
        "data": f"{tmp_path}/processing/input/data", "elsewhere": "/data/x", "table": f"{tmp_path}/processing/table",
    }  # fmt: skip
    assert config.setup is not None
    assert [each.name for each in config.setup.extract] == ["data"]
    assert config.setup.code == ""
    shown = text(config)
    assert f"SM_CHANNEL_DATA={tmp_path}/processing/input/data" in shown
    assert 'SM_CHANNELS=["data","elsewhere","table"]' in shown


@pytest.mark.parametrize("described", [{}, {"ProcessingInputs": None}, {"ProcessingJobArn": "x"}])
def test_a_processing_job_without_inputs(described, tmp_path):
    assert processing(tmp_path, described).input.channels == {}


@pytest.mark.parametrize(
    ("described", "says"),
    [
        ([], "contains a JSON list"),
        ({"ProcessingInputs": {"a": 1}}, "is not a list of objects"),
        ({"ProcessingInputs": [3]}, "is not a list of objects"),
        ({"ProcessingInputs": [{"InputName": 3}]}, "3 is not an InputName"),
        ({"ProcessingInputs": [{"InputName": "a", "S3Input": 3}]}, "3 is not an object"),
        ({"ProcessingInputs": [{"InputName": "a", "S3Input": {"LocalPath": "x"}}]}, "'x' is not an absolute path"),
    ],
)
def test_a_damaged_description_of_a_processing_job_is_refused(described, says, tmp_path):
    with pytest.raises(UserError, match=says):
        processing(tmp_path, described)


def test_a_path_cannot_climb_out_of_the_base_folder():
    paths = Paths(Path("/srv/host"))
    assert channels.placed("/opt/ml/processing/x", paths.base) == "/srv/host/processing/x"
    assert channels.placed("/opt/mlx", paths.base) == "/opt/mlx"
