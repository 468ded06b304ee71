"""What the tests of extraction use."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def train(tmp_path) -> Path:
    folder = tmp_path / "data" / "train"
    folder.mkdir(parents=True)
    return folder
