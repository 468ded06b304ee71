"""Inside a rank whose steps are traced: what is in its file, whatever becomes of the process."""

from __future__ import annotations

import pytest

from algorun.inside import rank_trace
from algorun.timing.activities import NAMES
from algorun.timing.step_trace import END, STEP, read_moments

from .rank_processes import USER, ended, line

SCRIPT = USER + (
    "import sys, os, time\n"
    "activities = sys.modules['algorun_rank_steps'].activities\n"
    "for number in range(1, int(os.environ['STEPS']) + 1):\n"
    "    activities.begin('data')\n"
    "    for _ in range(int(os.environ.get('MANY', '1'))):\n"
    "        activities.begin('saving'); activities.end()\n"
    "    if number % 2: activities.end()\n"
    "    step()\n"
    "    if not number % 2: activities.end()\n"
)


def moments(rank):
    path = rank.run / "trace-0"
    return read_moments(path.read_bytes()) if path.exists() else None


def test_a_window_holds_its_steps_and_what_was_open_at_its_begin(light):
    ended(light.start(SCRIPT, ALGORUN_TRACE_STEPS="5-6", STEPS="20"))
    found = moments(light)
    assert (found.first, found.last, found.closed, found.left_out, found.steps) == (5, 6, True, 0, 2)
    data, saving = NAMES.index("data") + 1, NAMES.index("saving") + 1
    step = [data, saving, END]
    assert [what for _, what in found.moments] == [
        *(STEP, data, END),  # `data` was open when step 4 ended
        *(*step, END, STEP),
        *(*step, STEP, END),
    ]
    times = [at for at, _ in found.moments]
    assert times == sorted(times)


@pytest.mark.parametrize("environ", [{}, {"ALGORUN_TRACE_STEPS": "21-22"}, {"ALGORUN_TRACE_STEPS": "damaged"}])
def test_without_a_window_or_before_it_there_is_no_file(light, environ):
    ended(light.start(SCRIPT + "print('well')\n", STEPS="19", **environ))
    assert moments(light) is None
    assert light.board.read(0).count == 19


def test_a_killed_rank_leaves_what_it_has_noted(light):
    process = light.start(
        SCRIPT + "print('there', flush=True)\ntime.sleep(60)\n", ALGORUN_TRACE_STEPS="5-50", STEPS="9"
    )
    line(process, "there")
    process.kill()
    found = moments(light)
    assert (found.closed, found.steps) == (False, 5)


@pytest.mark.parametrize(
    ("ranks", "most"), [(1, rank_trace.MOST_MOMENTS), (64, rank_trace.MOST_OF_HOST // 64), (100_000, 8)]
)
def test_a_full_buffer_leaves_activities_out_and_keeps_the_steps(light, ranks, most):
    """However many ranks of the host share the room."""
    ended(light.start(SCRIPT, ALGORUN_TRACE_STEPS="3-9", STEPS="12", MANY="4000", LOCAL_WORLD_SIZE=str(ranks)))
    found = moments(light)
    assert found.closed
    assert found.steps == 7
    assert len(found.moments) <= most
    assert len(found.moments) + found.left_out > 2 * 4000 * 7
