"""Why ranks wait for batches: the fix follows from what was measured."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.common.fast_dataclasses import replace
from algorun.timing.data_wait import BUSY, mean_load, verdict
from algorun.timing.host_load import HostLoad
from tests.conftest import examples

FREE = HostLoad(True, 10.0, 2, 0.41, 0.3, 16, 1e5, 1e5, workers=2)
MANY = replace(FREE, cpu=0.1, workers=6)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (FREE, "the CPUs are 30% busy: 8 workers for each rank, not 2 (--workers; num_workers of a DataLoader)"),
        (replace(FREE, workers=None), "the CPUs are 30% busy: 6 workers for each rank (--workers"),
        (replace(FREE, workers=0), "the CPUs are 30% busy, and the DataLoader has no workers: num_workers=7"),
        (replace(FREE, cpu=0.97), "and the CPUs are 97% busy: smaller images"),
        (replace(FREE, cpu=0.97, workers=0), "and the CPUs are 97% busy: smaller images"),
        (replace(MANY, disk_read=2e8), "the CPUs are 10% busy, disks read 200 MB/s: tar files, or FastFile in place"),
        (replace(MANY, network_in=2e8), "network brings 200 MB/s: a local copy (input mode File), tar files"),
        (replace(MANY, workers=0, network_in=2e8), "no workers: num_workers=8"),
        (MANY, "13 workers for each rank, not 6"),
        (replace(FREE, cpu=None), "more workers if CPUs are free; see docs/time.md"),
    ],
)
def test_the_fix_fits_what_was_measured(load, expected):
    line = verdict(load)
    assert line.startswith("data: ranks wait 41% of the time for batches")
    assert expected in line


loads = st.builds(
    HostLoad,
    *(st.just(True), st.floats(0.1, 1e4), st.integers(1, 64), st.floats(0, 1), st.none() | st.floats(0, 1)),
    *(st.integers(1, 192), st.floats(0, 1e10), st.none() | st.floats(0, 1e10)),
    workers=st.none() | st.integers(0, 64),
)


@examples(300)
@given(loads)
def test_more_workers_are_proposed_only_to_free_cpus_and_are_more(load):
    line = verdict(load)
    assert len(line) < 250
    found = re.search(r"(\d+) workers for each rank|num_workers=(\d+)", line)
    if found:
        assert load.cpu < BUSY
        assert int(found[1] or found[2]) > (load.workers or 0)
    elif load.cpu is not None and load.workers == 0:
        assert load.cpu >= BUSY


@examples(200)
@given(st.lists(loads, min_size=1, max_size=5))
def test_reports_together_lie_between_their_figures(reports):
    whole = mean_load(reports)
    assert whole.seconds == pytest.approx(sum(each.seconds for each in reports))
    shares = [each.data for each in reports]
    assert min(shares) - 1e-9 <= whole.data <= max(shares) + 1e-9
    assert mean_load([*reports[:1]]).cpu == pytest.approx(reports[0].cpu)
