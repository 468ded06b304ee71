"""Hosts are measured while their ranks run, and the job does not depend on it."""

from __future__ import annotations

import json
import os
import re
import signal

import psutil
import pytest

from algorun.timing.host_figures import from_line
from tests.launcher.inside.rank_processes import eventually
from tests.launcher.inside.test_rank_activities import script
from tests.launcher.whole.running import PROGRAMS, Running

SLOW_STEPS = PROGRAMS / "stepping.py"


def figures(folder, host):
    return folder / "algorun-simulate" / host / "output" / "data" / f"host_figures-{host}.jsonl"


def samplers(supervisor):
    return [child for child in supervisor.children() if "algorun.host.measuring.figure_sampler" in child.cmdline()]


@pytest.mark.usefixtures("nothing_beside")
def test_every_host_has_a_file_of_figures_and_a_killed_sampler_is_one_warning(tmp_path, nothing_left):
    sleeping = tmp_path / "sleeping.py"
    sleeping.write_text("import time\ntime.sleep(4)\n")
    job = Running("native", sleeping, folder=tmp_path, marker=nothing_left, layout="2x1", ALGORUN_TIMES_S="1")
    job.wait_for("world_size 2", 1)
    second = job.supervisor("algo-2")
    eventually(lambda: samplers(second), limit_s=20)
    eventually(lambda: figures(tmp_path, "algo-2").exists(), limit_s=20)
    for each in samplers(second):
        os.kill(each.pid, signal.SIGKILL)
    assert job.end() == 0, job.log.read_text()
    assert job.log.read_text().count("warning: no more figures of this host: its process ended with 137") == 1
    for host in ("algo-1", "algo-2"):
        found = [from_line(line) for line in figures(tmp_path, host).read_text().splitlines()]
        assert {each.host for each in found} == {host}
        assert found[0].start_s > 0


LOADING = """
    import time, torch
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        def __len__(self):
            return 160
        def __getitem__(self, index):
            time.sleep(0.02)
            return torch.ones(4)

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs in DataLoader(Slow(), batch_size=2):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        time.sleep(0.04)
"""


@pytest.mark.usefixtures("nothing_beside")
@pytest.mark.slow
def test_ranks_that_wait_for_batches_are_said_while_the_job_runs_and_in_its_table(tmp_path, nothing_left):
    job = Running(
        *("native", script(tmp_path, LOADING)), folder=tmp_path, marker=nothing_left, layout="1x1", ALGORUN_TIMES_S="1"
    )
    assert job.end() == 0, job.log.read_text()
    # Other processes of the machine decide whether its CPUs are free; a busy one may not have measured them at first.
    waits = r"data: ranks wait [4-6]\d% of the time for batches"
    said = waits + "(; the CPUs are .* no workers: num_workers=|, and the CPUs)"
    lines = [line for line in job.log.read_text().splitlines() if "data: ranks" in line]
    assert re.match(f"algorun: warning: ({said}|{waits}: more workers if CPUs are free)", lines[0])
    assert re.match(f"  {said}", lines[1])
    assert len(lines) == 2
    output = tmp_path / "algorun-simulate" / "algo-1" / "output" / "data" / "result.json"
    assert re.match(said, json.loads(output.read_text())["data"])


# A rank loads torch to show that a neighbour's behaviour stays as it was.
@pytest.mark.slow
def test_figures_can_be_switched_off(tmp_path, nothing_left):
    job = Running("native", SLOW_STEPS, 60, folder=tmp_path, marker=nothing_left, layout="1x1", ALGORUN_FIGURES="off")
    job.wait_for("world_size 1", 1)
    assert not any(samplers(each) for each in psutil.Process(job.process.pid).children())
    assert job.end() == 0, job.log.read_text()
    assert not figures(tmp_path, "algo-1").exists()
