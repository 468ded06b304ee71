"""Runs that mostly wait begin together, with the first test of their file, and each test collects its own.

    def frozen(folder, marker):
        return simulate("waiting.py", "freeze", folder=folder, marker=marker)

    @pytest.mark.parametrize("begun", [frozen], indirect=True)
    def test_a_frozen_rank_is_named(begun):
        assert begun.code == 67

`marker` is for what the run starts, as that of the fixture `nothing_left`. Only runs of chosen tests begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import assert_nothing_is_left

AT_ONCE = 5  # more of them would be late because of each other
Run = Callable[[Path, str], Any]


@pytest.fixture(scope="module", autouse=True)
def begun_runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Run, Any]]:
    """Each run's marker and result to come."""
    chosen = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    runs = [item.callspec.params["begun"] for item in chosen if "begun" in item.callspec.params]
    pool = ThreadPoolExecutor(AT_ONCE)
    begun: dict[Run, tuple[str, Future[Any]]] = {}
    for run in runs:
        if run not in begun:
            folder = tmp_path_factory.mktemp("begun")
            begun[run] = (str(folder), pool.submit(run, folder, str(folder)))
    yield begun
    pool.shutdown(cancel_futures=True)


@pytest.fixture
def begun(request: pytest.FixtureRequest, begun_runs: dict[Run, Any]) -> Iterator[Any]:
    """What the run returned that is this test's parameter. No process of it stays behind."""
    marker, result = begun_runs[request.param]
    yield result.result()
    assert_nothing_is_left(marker)
