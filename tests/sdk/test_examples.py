"""The files of examples/ run as their first lines say, in the local modes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from sdk_docker import IMAGE, clean, containers, has_network
from sdk_environment import PYTHON, REPOSITORY, environment

pytestmark = pytest.mark.docker
LIMIT_S = 400.0

EXAMPLES = {
    "v2_pytorch.py": ("v2", ["epoch: 3/3 train_loss: ", "ok nnodes=2 world_size=2"]),
    "v2_estimator.py": ("v2", ["epoch: 5/5 ", "ok nnodes=2 world_size=4"]),
    "v2_pipeline.py": ("v2", ["ok nnodes=2 world_size=4", "pipeline: Succeeded"]),
    "v3_model_trainer.py": ("v3", ["epoch: 3/3 train_loss: ", "ok nnodes=2 world_size=4"]),
}


# These two stand for the rows "no script" and "command and entry_script"; the quick row "ddp with a channel model" is a job like the
# third.
QUICK = ("v2_estimator.py", "v3_model_trainer.py")


@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in EXAMPLES]
)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    client, expected = EXAMPLES[name]
    shutil.copytree(REPOSITORY / "examples", tmp_path / "examples")
    had_network = has_network()
    try:
        done = subprocess.run(
            [PYTHON[client], f"examples/{name}", "--image-uri", IMAGE, "--local"],
            cwd=tmp_path,
            env=environment(tmp_path / "work", client),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, said[-4000:]
        for text in expected:
            assert text in said, said[-4000:]
    finally:
        clean(tmp_path, had_network)  # the SDKs leave their containers
    assert containers(tmp_path) == []
