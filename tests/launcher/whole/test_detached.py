"""What a script detaches in its first milliseconds, before its supervisor can adopt it, ends with the host all the same."""

from __future__ import annotations

import time

from tests.conftest import ours

from .running import Running, simulate

# A shell does it faster than the supervisor comes to its second line.
DETACHING = '#!/bin/sh\n(setsid sh -c "echo detached $$ >> detached; exec sleep 60" > /dev/null 2>&1 &)\n'


def detach(folder, more=""):
    (folder / "train.sh").write_text(DETACHING + more)


def test_detached_processes_end_with_their_host(tmp_path, nothing_left):
    detach(tmp_path, "while [ $(wc -l < detached) -lt 4 ]; do sleep 0.01; done 2> /dev/null\n")
    done = simulate("native", "train.sh", folder=tmp_path, marker=nothing_left)
    assert done.code == 0, done.text
    assert (tmp_path / "detached").read_text().count("detached") == 4


def test_they_end_with_a_host_that_is_killed(tmp_path, nothing_left):
    detach(tmp_path, "echo ready\nsleep 60\n")
    job = Running("native", "train.sh", folder=tmp_path, marker=nothing_left, layout="2x1")
    job.wait_for("] ready", 2)
    job.supervisor("algo-2").kill()
    assert job.end() == 66, job.log.read_text()
    deadline = time.monotonic() + 10
    while (left := ours(nothing_left)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
