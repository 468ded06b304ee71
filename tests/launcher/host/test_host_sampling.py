"""What a supervisor does about the process that measures its host: whatever becomes of it, there is one warning."""

from __future__ import annotations

import json
import os
import signal
from types import SimpleNamespace

import pytest

from algorun.common.errors import UserError
from algorun.common.event_loop import Loop
from algorun.common.fast_dataclasses import replace
from algorun.host.measuring.figure_setup import SamplerSetup
from algorun.host.measuring.host_sampling import SILENT_S, HostSampling, setup
from algorun.machine.nvidia import Nvidia
from algorun.machine.visible_gpus import visible
from algorun.timing.host_figures import HostFigures, to_line
from tests.conftest import job, machine

LINE = to_line(HostFigures(2.0, 2.0, 2.0, "algo-1", cpu=0.5))


@pytest.mark.parametrize(
    ("value", "gpus"), [(None, True), ("1", True), ("", False)], ids=["all GPUs", "one GPU", "a job on the CPU"]
)
def test_gpus_are_measured_only_if_ranks_see_them(value, gpus):
    found = replace(machine(), nvidia=Nvidia(devices=2), visible=visible(value, 2, ()))
    made = setup(job("script"), found, 5.0)
    assert (made.gpus, made.visible, made.begin) == (gpus, value, 5.0)
    assert made.file.endswith(f"/output/data/host_figures-{made.host}.jsonl")
    assert "/tmp" in made.folders


class Host:
    """A loop, a console that keeps its lines, and an owner that starts nothing: the test writes what a process would."""

    def __init__(self, gpus=False):
        self.said, self.setups, self.killed, self.broken = [], [], [], False
        tools = SimpleNamespace(
            loop=Loop(),
            owner=self,
            warn=lambda text: self.said.append(f"algorun: warning: {text}"),
            programs=SimpleNamespace(python="python"),
        )
        self.loop = tools.loop
        self.sampling = HostSampling(tools, SamplerSetup("algo-1", "/x", "lo", (), 0.0, gpus=gpus))

    def start(self, argv, environ, cwd, stdout, stderr, *, what, aside):
        if self.broken:
            raise UserError(what, "python: No such file or directory")
        assert aside
        self.setups.append(json.loads(argv[-1]))
        self.pipe = os.dup(stdout)
        return 1_000_000 + len(self.setups)

    def process_says(self, text):
        os.write(self.pipe, text.encode())
        for _ in range(2):
            self.loop.post(self.loop.stop)
            self.loop.run()

    def close(self):
        if self.setups:
            os.close(self.pipe)
        self.sampling.finish()
        self.loop.close()


@pytest.fixture
def host(monkeypatch):
    found = Host()
    monkeypatch.setattr(
        "algorun.host.measuring.host_sampling.send_below", lambda pid, number: found.killed.append((pid, number))
    )
    yield found
    found.close()


def test_lines_are_taken_once(host):
    host.sampling.start(0.0)
    host.process_says(LINE + LINE[:9])
    host.process_says(LINE[9:])
    assert [each.cpu for each in host.sampling.take()] == [0.5, 0.5]
    assert host.sampling.take() == []


def test_a_warning_of_the_process_is_the_hosts(host):
    host.sampling.start(0.0)
    host.process_says(json.dumps({"warning": "the disk is full"}) + "\nno line of ours\n[3]\n")
    assert host.said == ["algorun: warning: the disk is full"]


def test_one_that_hangs_is_killed_with_one_warning(host):
    host.sampling.start(0.0)
    host.sampling.look(SILENT_S - 1)
    assert host.said == []
    for later in (1, 2, 3):
        host.sampling.look(SILENT_S + later)
    assert len(host.said) == 1
    assert "nothing was measured for 60 s" in host.said[0]
    assert host.killed == [(1_000_001, signal.SIGKILL)]


def test_one_that_ends_is_one_warning_with_its_last_words(host):
    host.sampling.start(0.0)
    host.process_says("Traceback ..\nImportError: x\n")
    host.sampling.ended(1, 5.0)
    assert host.said == ["algorun: warning: no more figures of this host: its process ended with 1: ImportError: x"]
    assert not host.sampling.is_sampler(1_000_001)


def test_after_a_crash_on_a_host_with_gpus_the_next_one_leaves_them_alone(host):
    host.sampling = HostSampling(host.sampling._tools, SamplerSetup("algo-1", "/x", "lo", (), 0.0, gpus=True))
    host.sampling.start(0.0)
    os.close(host.pipe)
    host.sampling.ended(-signal.SIGSEGV, 5.0)
    assert host.said == ["algorun: warning: no more figures of this host's GPUs: its process ended with 139"]
    assert [each["gpus"] for each in host.setups] == [True, False]
    assert host.sampling.is_sampler(1_000_002)
    host.process_says(LINE)
    assert len(host.sampling.take()) == 1


def test_one_that_cannot_start_is_one_warning(host):
    host.broken = True
    host.sampling.start(0.0)
    host.sampling.look(1e6)
    assert len(host.said) == 1
    assert "no figures of this host: figures: python: No such file" in host.said[0]
