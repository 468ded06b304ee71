"""The facts that hosts compare at the start."""

from __future__ import annotations

import json

import pytest

from algorun.job.config import LaunchRequest, read_config
from algorun.plan import agreement


def program(base, args: list[str]) -> str:
    """The program as a host shows it whose /opt/ml is `base`."""
    config = base / "input" / "config"
    config.mkdir(parents=True)
    (config / "resourceconfig.json").write_text('{"hosts": ["a", "b"], "current_host": "a"}')
    given = {"sagemaker_program": "train.py", "algorun_args": json.dumps([word.format(base) for word in args])}
    (config / "hyperparameters.json").write_text(json.dumps(given))
    (base / "code").mkdir()
    (base / "code" / "train.py").touch()
    return agreement.shown(read_config(LaunchRequest(from_job=True), {"SAGEMAKER_BASE_DIR": str(base)}))


@pytest.mark.parametrize(
    "word", ["{0}/input/data/images", "--data={0}/input", "{0}", "--root={0}", '["{0}", "{0}/model"]']
)
def test_simulated_hosts_agree_on_paths_below_their_own_opt_ml(tmp_path, word):
    first, second = (program(tmp_path / host, [word]) for host in ("algo-1", "algo-2"))
    assert first == second
    assert word.format("/opt/ml") in first


def test_other_secrets_stay_different_and_are_not_shown(tmp_path):
    first, second = (program(tmp_path / host, ["--password", f"of {host}"]) for host in ("algo-1", "algo-2"))
    assert first != second
    assert "of algo" not in first + second


def test_other_paths_stay_different(tmp_path):
    first, second = (program(tmp_path / host, [f"/data/{host}"]) for host in ("algo-1", "algo-2"))
    assert first != second
