"""The fault table: every case of cases.py under its engines. `make test-all PART=chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from .cases import CASES, Case
from .runner import Lane, run

pytestmark = pytest.mark.root


def _chosen(*, waits: bool) -> list[object]:
    return [
        pytest.param(case, engine, id=f"{case.id}-{engine}", marks=[] if engine in case.quick else [pytest.mark.slow])
        for case in CASES
        for engine in case.engines
        if case.waits == waits
    ]


@pytest.mark.parametrize(("case", "engine"), _chosen(waits=False))
def test_fault(case: Case, engine: str, folder: Path, repeats: int) -> None:
    run(case, engine, folder, repeats)


@pytest.mark.parametrize(("case", "engine"), _chosen(waits=True))
def test_fault_with_a_long_wait(case: Case, engine: str, lane: Lane) -> None:
    lane.result((case.id, engine))


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({case.id for case in CASES}) == len(CASES)
