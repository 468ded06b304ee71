"""Whether something that a shell script has left behind still passes on its lines. Real scripts, whose output goes to a pipe."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from algorun.host.processes.owner import kill_sessions, processes, send
from algorun.host.ranks.filters import READS_S, Filters

LIMIT_S = 20.0


@contextmanager
def left_by(script: str) -> Iterator[tuple[int, int]]:
    """The session of a script that has ended, and the end of the pipe at which its output is read."""
    end, output = os.pipe()
    process = subprocess.Popen(["bash", "-c", script], stdout=output, stderr=output, start_new_session=True)
    os.close(output)
    try:
        process.wait(LIMIT_S)
        yield process.pid, end
    finally:
        for each in processes():
            if each.session == process.pid:
                send(each.pid, each.born, 9)
        kill_sessions([process.pid])
        os.close(end)


def until(session: int, end: int, *, at_work: bool) -> float:
    """The seconds until it is so."""
    filters, begun = Filters(), time.monotonic()
    while filters.at_work(time.monotonic(), [session], [end]) is not at_work:
        assert time.monotonic() - begun < LIMIT_S
        time.sleep(0.02)
    return time.monotonic() - begun


@pytest.mark.parametrize(
    "script",
    [
        'exec > >(while read -r line; do sleep 0.2; echo "$line"; done); echo a; echo b; echo c',
        "exec > >(cat | (sleep 0.6; cat)); echo a",
        "exec 2> >(sleep 0.6; cat >&2); echo a >&2",
    ],
    ids=["slow", "chain", "stderr"],
)
def test_a_filter_is_at_work_until_it_has_passed_on_the_last_line(script):
    with left_by(script) as (session, end):
        until(session, end, at_work=True)
        until(session, end, at_work=False)
        os.set_blocking(end, False)
        assert os.read(end, 100).startswith(b"a\n")


@pytest.mark.parametrize(
    "script",
    ["tail -f /dev/null | grep --line-buffered x &", "sleep 60 &", "exec > >(cat); sleep 60 &"],
    ids=["waits for lines", "no filter", "input stays open"],
)
def test_what_waits_is_no_filter_at_work(script):
    with left_by(script) as (session, end):
        until(session, end, at_work=False)
        filters = Filters()
        assert [filters.at_work(at / 10, [session], [end]) for at in range(3)] == [False] * 3


@pytest.mark.parametrize(
    "script", ["true | sleep 60 &", "yes | sleep 60 &"], ids=["an input that has ended", "an input that is never read"]
)
def test_what_does_not_read_is_at_work_for_a_moment_only(script):
    with left_by(f"{script} sleep 0.5") as (session, end):
        assert READS_S <= until(session, end, at_work=False) < READS_S + 10
