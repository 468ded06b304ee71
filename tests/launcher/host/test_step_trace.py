"""One host's part of a trace: when it asks for the clock, what it writes, and what it says if there is nothing to write."""

from __future__ import annotations

import json
import mmap
import time
from types import SimpleNamespace

import pytest

from algorun.control.wire.messages import ClockTold
from algorun.host.measuring.step_trace import IN_A_ROW, StepTrace
from algorun.inside import rank_trace
from algorun.job.paths import Paths
from tests.launcher.timing.trace_reader import slices

STEPS = (5, 6)


class Host:
    """A host of a job of two, whose ranks are 2 and 3."""

    def __init__(self, folder, *, host="algo-2", window=STEPS):
        self.asked, self.said = [], []
        self.run = folder / "run"
        self.run.mkdir()
        self.paths = Paths(folder / host)
        resources = SimpleNamespace(hosts=("algo-1", "algo-2"), current_host=host)
        config = SimpleNamespace(resources=resources, paths=self.paths)
        self.trace = StepTrace(config, window, str(self.run), self.asked.append, self.said.append)
        self.trace.begin(1, [2, 3])

    def step(self, *counts):
        """Each rank makes its steps up to a count."""
        for local_rank, count in enumerate(counts):
            activities = SimpleNamespace(note=None, open=[])
            rank = rank_trace.Trace(mmap, str(self.run / f"trace-{local_rank}"), "{}-{}".format(*STEPS), 2, activities)
            for number in range(1, count + 1):
                rank.stepped(number, time.monotonic())

    @property
    def parts(self):
        return sorted(self.paths.output_data.glob("trace_steps-*"))


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def test_a_host_asks_when_its_window_is_over_and_writes_its_part_with_the_answers(host):
    host.step(6, 5)
    host.trace.look()
    assert len(host.asked) == 1, "rank 3 is not there yet"
    (host.run / "trace-1").unlink()
    (host.run / "trace-0").unlink()
    host.step(9, 7)
    host.trace.look()
    assert host.parts == []
    for number in range(IN_A_ROW):
        assert len(host.asked) == 2 + number, "each answer but the last one brings a question"
        sent = host.asked[-1].at
        host.trace.answered(ClockTold(sent, sent - 99.99), sent + 0.02)
    assert len(host.asked) == 1 + IN_A_ROW
    host.trace.look()
    (path,) = host.parts
    assert path.name == "trace_steps-attempt-1-algo-2.json"
    part = json.loads(path.read_text())
    assert part["metadata"]["algorun"]["added_s"] == pytest.approx(-100.0)
    assert part["metadata"]["algorun"]["within_s"] == pytest.approx(0.01, abs=1e-3)
    assert [each.name for each in slices(part)] == ["step 5", "step 6"] * 2
    host.trace.look()
    host.trace.keep(final=True)
    assert (len(host.asked), host.said) == (1 + IN_A_ROW, [])


def test_the_leader_asks_nobody(tmp_path):
    leader = Host(tmp_path, host="algo-1")
    leader.step(6, 6)
    for _ in range(2):
        leader.trace.look()
    assert leader.asked == []
    assert json.loads(leader.parts[0].read_text())["metadata"]["algorun"]["within_s"] == 0


def test_a_window_that_no_rank_reaches_is_one_line_of_the_leader_and_no_file(tmp_path):
    hosts = [Host(tmp_path / name, host=name) for name in ("algo-1", "algo-2") if not (tmp_path / name).mkdir()]
    for each in hosts:
        each.step(4, 3)  # the window has begun, and none of its steps is over
        each.trace.keep()
        each.trace.begin(2, [2, 3])
        each.trace.keep(final=True)
        assert each.parts == []
    line = "warning: ALGORUN_TRACE_STEPS=5-6: no rank here has made step 5; no trace"
    assert [each.said for each in hosts] == [[line], []]


def test_another_attempt_begins_anew(host):
    host.step(6, 6)
    host.trace.keep()
    host.trace.begin(2, [2, 3])
    assert list(host.run.iterdir()) == []
    host.step(5, 5)
    host.trace.keep(final=True)
    assert [each.name for each in host.parts] == [
        "trace_steps-attempt-1-algo-2.json",
        "trace_steps-attempt-2-algo-2.json",
    ]
    complete = [json.loads(each.read_text())["metadata"]["algorun"]["complete"] for each in host.parts]
    assert complete == [True, False]


def test_a_part_that_cannot_be_written_is_one_warning(host):
    host.paths.output.parent.mkdir(parents=True)
    host.paths.output.write_text("a file where the folder should be")
    host.step(6, 6)
    host.trace.keep(final=True)
    assert len(host.said) == 1
    assert host.said[0].endswith("this host's part of the trace is lost")
