"""What several tests of AWS's scripts use."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel.torch import session
from tests.conftest import clean_environ
from tests.train.training_runs import by_itself


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Runs a script of this text, without a launcher: its exit code and its output, without the line that says whose package it
    has imported (tests/repository/test_distributions.py)."""

    def run(text: str, **environ: str) -> tuple[int, str]:
        (tmp_path / "script.py").write_text(text)
        code, output = by_itself(tmp_path, tmp_path / "script.py", **environ)
        return code, re.sub(r"^algorun: (smdistributed|horovod) is .*\n", "", output, flags=re.MULTILINE)

    return run


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """smp.init() in this process: without a launcher it is a job of one rank."""
    for name in set(os.environ) - set(clean_environ()):
        monkeypatch.delenv(name)
    monkeypatch.setenv(session.VARIABLE, json.dumps({"partitions": 1}))
    monkeypatch.setattr(session, "_session", None)
    assert not smp.is_initialized()
    smp.init()
    assert smp.is_initialized()
