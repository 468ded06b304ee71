"""docker/hosts.py: the /opt/ml trees of the hosts that `build.sh run` and compose start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.image.programs import ROOT

# -S too: it is for machines that have nothing but Python.
HOSTS = [sys.executable, "-IS", str(ROOT / "docker/hosts.py")]


def test_hosts_get_their_own_trees_and_keep_what_sagemaker_keeps(tmp_path: Path) -> None:
    argv = [*HOSTS, str(tmp_path), "--hosts", "algo-2,algo-10"]
    argv += ["--hyperparameters", "epochs=3 'name=a b'", "--channel", "train"]
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    (tmp_path / "algo-10/model/old.pt").touch()
    (tmp_path / "algo-10/checkpoints/kept").touch()
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    config = tmp_path / "algo-10/input/config"
    assert json.loads((config / "resourceconfig.json").read_text()) == {
        "current_host": "algo-10",
        "hosts": ["algo-2", "algo-10"],
        "network_interface_name": "eth0",
    }
    assert json.loads((config / "hyperparameters.json").read_text()) == {"epochs": "3", "name": "a b"}
    assert list(json.loads((config / "inputdataconfig.json").read_text())) == ["train"]
    assert not (tmp_path / "algo-10/model/old.pt").exists()
    assert (tmp_path / "algo-10/checkpoints/kept").exists()


@pytest.mark.parametrize("argv", [["--hosts", ""], ["--hosts", "a,a"], ["--hosts", "a", "--hyperparameters", "x"]])
def test_hosts_refuses_what_cannot_be_meant(tmp_path: Path, argv: list[str]) -> None:
    command = [*HOSTS, str(tmp_path / "out"), *argv]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 2
    assert not (tmp_path / "out").exists()
