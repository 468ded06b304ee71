"""A job whose one rank is slow says so while it runs, and an even job says nothing."""

from __future__ import annotations

import json
import re

import pytest

from algorun_report.folder.read import read_report
from algorun_report.folder.trace_files import merge
from tests.launcher.inside.test_rank_activities import script
from tests.launcher.timing.trace_reader import slices
from tests.launcher.whole.running import simulate

JOB = """
    import sys, time, torch, torch.distributed as dist, torch.nn as nn

    part, delayed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])

    class Slowly(torch.autograd.Function):
        @staticmethod
        def forward(context, inputs):
            time.sleep(0.02 + extra("forward"))
            return inputs.clone()
        @staticmethod
        def backward(context, gradient):
            time.sleep(0.02 + extra("backward"))
            return gradient

    def extra(name):
        return 0.04 if name == part and dist.get_rank() == delayed else 0.0

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        def forward(self, inputs):
            return self.last(Slowly.apply(self.first(inputs)))

    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    until = time.monotonic() + seconds
    go_on = torch.ones(1)
    while go_on.item():
        time.sleep(extra("what no activity names"))
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        go_on.fill_(time.monotonic() < until)
        dist.broadcast(go_on, 0)
    dist.destroy_process_group()
"""


def result(folder, host):
    return json.loads((folder / "algorun-simulate" / host / "output" / "data" / "result.json").read_text())


def assert_traced(folder):
    """The trace of steps 20 to 40: every rank has them all, and no backward ends before all ranks have begun theirs."""
    ((trace, path),) = merge(folder / "algorun-simulate", folder, "")
    assert (trace.complete, trace.hosts, trace.ranks) == (True, 2, 4)
    found = slices(json.loads(path.read_text()))
    steps = {(each.process, each.thread, each.name) for each in found if each.thread.endswith(": steps")}
    assert steps == {
        (f"algo-{rank // 2 + 1}", f"rank {rank}: steps", f"step {n}") for rank in range(4) for n in range(20, 41)
    }
    backward = [
        [each for each in found if (each.thread, each.name) == (f"rank {rank}", "backward")] for rank in range(4)
    ]
    assert [len(each) for each in backward] == [21] * 4
    spread = 1e6 * trace.within_s
    assert spread < 1e4
    for step in zip(*backward, strict=True):
        assert max(each.begin for each in step) <= min(each.end for each in step) + spread


# Who is slow is decided in launcher/control/test_pace.py and launcher/timing/test_slowness.py.
@pytest.mark.slow
@pytest.mark.usefixtures("nothing_beside")
def test_a_slow_rank_is_named_with_its_host_and_what_it_spends_its_time_on(tmp_path, nothing_left):
    path, part = script(tmp_path, JOB), "what no activity names"
    environ = {"ALGORUN_TIMES_S": "1", "ALGORUN_TRACE_STEPS": "20-40"}
    done = simulate(*("native", path, part, "2", "9"), folder=tmp_path, marker=nothing_left, layout="2x2", **environ)
    assert done.code == 0, done.text
    lines = [line for line in done.text.splitlines() if " slow: " in line]
    assert len(lines) == 2, done.text
    said = rf"slow: rank 2 on algo-2: .* most of the excess in {part}; the others wait"
    assert re.search(f"warning: {said}", lines[0])
    assert re.match(f"  {said}", lines[1])  # in the closing table
    for host in ("algo-1", "algo-2"):
        assert re.match(said, result(tmp_path, host)["slow"])
    report = read_report(tmp_path / "algorun-simulate")
    assert [(each.host, each.ranks) for each in report.activities.hosts] == [("algo-1", (0, 1)), ("algo-2", (2, 3))]
    assert all(len(each.windows) >= 5 for each in report.activities.hosts)
    assert [re.match(said, line) is not None for _, line in report.activities.slow] == [True]
    assert_traced(tmp_path)
    exchange = report.activities.names.index("exchange")
    (first,) = [each.windows[3].shares for each in report.activities.hosts[:1]]
    (second,) = [each.windows[3].shares for each in report.activities.hosts[1:]]
    assert second[0][exchange] + 0.1 < min(first[0][exchange], first[1][exchange], second[1][exchange])


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_beside")
def test_in_an_even_job_nobody_is_slow(tmp_path, nothing_left):
    path = script(tmp_path, JOB)
    done = simulate(
        *("native", path, "none", "0", "9"), folder=tmp_path, marker=nothing_left, layout="2x2", ALGORUN_TIMES_S="1"
    )
    assert done.code == 0, done.text
    assert " slow: " not in done.text
    assert "slow" not in result(tmp_path, "algo-1")


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_beside")
def test_a_job_too_short_for_a_warning_says_at_its_end_who_was_slow(tmp_path, nothing_left):
    path = script(tmp_path, JOB)
    done = simulate("native", path, "backward", "2", "8", folder=tmp_path, marker=nothing_left, layout="2x2")
    assert done.code == 0, done.text
    assert " slow: " not in done.text.partition("algorun: time of")[0]
    assert re.match("slow: rank 2 on algo-2: .* in backward;", result(tmp_path, "algo-2")["slow"])
