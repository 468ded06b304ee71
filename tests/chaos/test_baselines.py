"""What bare torchrun and bare mpirun do under the faults that they share with the table: seconds, no verdict."""

from __future__ import annotations

import pytest

from .baselines import FAULTS, PEERS, SHARED
from .cases import Case
from .runner import Lane

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("fault", FAULTS, ids=[case.id for case in FAULTS])
def test_bare_launcher(fault: Case, peer: str, lane: Lane) -> None:
    lane.result((fault.id, peer, "bare"))


def test_the_table_has_every_shared_fault() -> None:
    assert [case.id for case in FAULTS] == list(SHARED)
