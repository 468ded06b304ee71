"""Real clients, real containers: each row of the table is one job by the SageMaker SDK v2 or v3. `make test-all PART=sdk`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from rows import ROWS, Row
from sdk_client import Seen, run

pytestmark = pytest.mark.docker


@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.id, marks=[] if row.quick else [pytest.mark.slow]) for row in ROWS]
)
def test_row(row: Row, tmp_path: Path, note: Callable[[Seen], None]) -> None:
    seen = run(
        tmp_path / "job",
        row.client,
        row.kind,
        row.hosts,
        row.options,
        with_s3=row.s3,
        requirements=row.requirements,
        channels=row.channels,
        during=row.during,
        limit_s=row.limit_s,
    )
    note(seen)
    row.check(seen)


def test_every_row_has_a_name_of_its_own() -> None:
    assert len({row.id for row in ROWS}) == len(ROWS)
