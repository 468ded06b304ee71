import os
from pathlib import Path
from typing import Any

import pytest

from tests.train.training_runs import Ranks

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch loads: more threads than cores only wait for each other


@pytest.fixture
def ranks(tmp_path):
    """Starts ranks, and ends what a test has left running."""
    started: list[Ranks] = []

    def start(hosts: int, slots: int, *args: str, base: Path | None = None, **options: Any) -> Ranks:
        folder = base or tmp_path / f"run{len(started)}"
        folder.mkdir(exist_ok=True)
        started.append(Ranks(folder, hosts, slots, list(args), **options))
        return started[-1]

    yield start
    for group in started:
        group.kill()


@pytest.fixture
def alone(tmp_path, monkeypatch, capsys):
    """Runs the entrypoint's main in this process, as a lone rank; returns its output. Errors come as exceptions."""
    from algorun.inside.stop_flag import StopFlag
    from algorun_train.jobs import ddp

    def run(*args: str, base: Path = tmp_path / "alone") -> str:
        for name in list(os.environ):
            if name.startswith("SM_") or name in ("RANK", "WORLD_SIZE"):
                monkeypatch.delenv(name)
        base.mkdir(exist_ok=True)
        monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(base))
        capsys.readouterr()
        assert ddp.main(list(args), StopFlag()) == 0
        return capsys.readouterr().out

    return run
