"""Activities of a rank whose GPU runs behind its CPU: a model of a stream stands for the GPU, and knows what took how long."""

from __future__ import annotations

import types

import pytest

from algorun.inside import rank_gpu_times, rank_steps

NAMES = rank_steps.ACTIVITIES
EVENT_S = 2e-6  # of the CPU, for an event


class Machine:
    """A CPU with a clock, and a GPU that works through its stream in order. Stands for the modules time and torch.cuda."""

    def __init__(self) -> None:
        self.now = 100.0
        self.free_at = [0.0]  # of each stream
        self.stream = 0
        self.capturing = self.broken = False
        self.events = 0
        self.queued: list[float] = []  # the ends of the work of the first stream
        self.most_queued = 24
        self.event_s = EVENT_S
        machine = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing
                if machine.broken:
                    raise RuntimeError("CUDA error")
                machine.events += 1

            def record(self, stream):
                assert not machine.capturing
                machine.now += machine.event_s
                self.at = max(machine.now, machine.free_at[stream])

            def query(self):
                assert not machine.capturing
                return self.at <= machine.now

            def elapsed_time(self, end):
                assert max(self.at, end.at) <= machine.now, "nobody may wait for an event"
                return 1000 * (end.at - self.at)

        self.Event = Event

    def monotonic(self):
        return self.now

    def current_stream(self):
        return self.stream

    def current_device(self):
        return 0

    def is_initialized(self):
        return True

    def is_current_stream_capturing(self):
        return self.capturing

    # what a script does
    def cpu(self, seconds):
        self.now += seconds

    def queue(self, seconds):
        """Work for the GPU, of which the CPU knows nothing more. Where too much is queued, CUDA makes the CPU wait."""
        if len(self.queued) >= self.most_queued:
            self.now = max(self.now, self.queued[-self.most_queued])
        self.free_at[self.stream] = max(self.now, self.free_at[self.stream]) + seconds
        self.queued.append(self.free_at[self.stream])

    def wait(self):
        """As `.item()` does."""
        self.now = max(self.now, self.free_at[self.stream])


class Rank:
    """The rank's record, as its process writes it."""

    def __init__(self, monkeypatch, *, context=True, tells_addresses=True) -> None:
        self.machine = Machine()
        self.record = memoryview(bytearray(rank_steps.RECORD))
        monkeypatch.setattr(rank_steps, "time", self.machine)
        monkeypatch.setattr(rank_gpu_times, "time", self.machine)
        monkeypatch.setattr(rank_steps, "_beside", lambda part: rank_gpu_times)
        built = types.SimpleNamespace(_cuda_hasPrimaryContext=lambda device: context)
        if tells_addresses:
            built._cuda_getCurrentRawStream = lambda device: 4096 * self.machine.stream
        monkeypatch.setitem(rank_steps.sys.modules, "torch", types.SimpleNamespace(cuda=self.machine, _C=built))
        self.activities = rank_steps.Activities(self.record)
        self.activities.stepped(self.machine.now)

    def does(self, name, *, cpu=0.001, gpu=0.0):
        self.activities.begin(name)
        self.machine.cpu(cpu)
        self.machine.queue(gpu)
        self.activities.end()

    def step(self, **gpu):
        """A step that computes for so long, and a batch that was there."""
        self.does("data")
        for name in ("forward", "backward", "exchange", "optimizer"):
            if name == "optimizer":  # the hook of a step runs before its activity ends
                self.activities.begin(name)
                self.machine.cpu(0.001)
                self.machine.queue(gpu.get(name, 0.0))
                self.activities.stepped(self.machine.now)
                self.activities.end()
            else:
                self.does(name, gpu=gpu.get(name, 0.0))

    @property
    def seconds(self):
        times = self.record.cast("d")
        return {name: times[rank_steps.FIRST_ACTIVITY + index] for index, name in enumerate(NAMES)}

    @property
    def on_gpu(self):
        return self.record.cast("Q")[rank_steps.ON_GPU]


@pytest.fixture
def rank(monkeypatch):
    return Rank(monkeypatch)


def test_what_takes_long_on_the_gpu_shows_where_it_was_queued(rank):
    """The CPU waits where it reads the loss, which no activity names."""
    for _ in range(100):
        rank.step(forward=0.03, backward=0.06, optimizer=0.01)
        rank.machine.wait()
    seen = rank.seconds
    assert rank.on_gpu == 1
    assert seen["forward"] == pytest.approx(3.0, rel=0.05)
    assert seen["backward"] == pytest.approx(6.0, rel=0.05)
    assert seen["optimizer"] == pytest.approx(1.0, rel=0.15)
    assert seen["data"] < 0.2


def test_a_wait_for_other_ranks_is_exchange_although_the_cpu_does_not_wait(rank):
    for _ in range(50):
        rank.step(forward=0.02, backward=0.02, exchange=0.06, optimizer=0.001)
    rank.machine.wait()
    rank.activities.stepped(rank.machine.now)
    assert rank.seconds["exchange"] == pytest.approx(3.0, rel=0.05)
    assert rank.seconds["forward"] == pytest.approx(1.0, rel=0.05)


def test_a_batch_that_comes_while_the_gpu_works_has_cost_nothing(rank):
    for _ in range(50):
        rank.does("data", cpu=0.04)
        rank.step(forward=0.03, backward=0.06)
    hidden = rank.seconds["data"]
    rank.machine.wait()
    for _ in range(50):
        rank.does("data", cpu=0.14)
        rank.step(forward=0.03, backward=0.06)
    assert hidden < 0.5  # of 2 s that the CPU waited
    assert rank.seconds["data"] - hidden == pytest.approx(50 * (0.145 - 0.09), rel=0.05)


def test_nobody_waits_for_the_gpu_and_all_is_told_in_the_end(rank):
    """The CPU is 5 s ahead of the GPU: until the GPU has passed them, the CPU's seconds stand."""
    rank.machine.most_queued = 10_000
    begun = rank.machine.now
    for _ in range(50):
        rank.step(forward=0.05, backward=0.05)
    assert rank.machine.now - begun < 0.5
    assert sum(rank.seconds.values()) < 1
    rank.machine.wait()
    rank.activities.stepped(rank.machine.now)
    assert rank.seconds["forward"] == pytest.approx(2.5, rel=0.05)
    assert sum(rank.seconds.values()) <= 1.01 * (rank.machine.now - begun)


def test_short_steps_are_sampled_and_their_sum_is_that_of_all(rank):
    rank.step(forward=0.0005, backward=0.001)
    begun, events = rank.machine.now, rank.machine.events
    for _ in range(2000):
        for name, gpu in (("data", 0), ("forward", 0.0005), ("backward", 0.0011), ("optimizer", 0.0004)):
            rank.does(name, cpu=0.0001, gpu=gpu)
        rank.machine.wait()
        rank.activities.stepped(rank.machine.now)
    took = rank.machine.now - begun
    assert (rank.machine.events - events) * EVENT_S <= 1.3 * rank_gpu_times.SHARE * took
    seen = rank.seconds
    assert sum(seen.values()) <= 1.02 * took
    assert seen["backward"] == pytest.approx(2.2, rel=0.1)
    assert seen["forward"] == pytest.approx(1.0, rel=0.25)  # and 0.1 ms in which the GPU waits for the CPU


@pytest.mark.parametrize("most_queued", [40, 400, 4000])
@pytest.mark.parametrize("event_s", [2e-6, 20e-6, 200e-6])
def test_a_cpu_that_runs_ahead_says_nothing_of_how_long_a_step_was(rank, event_s, most_queued):
    """The loop reads no number. Until the queue is full, a step is as long as its events, on the CPU."""
    rank.machine.event_s, rank.machine.most_queued = event_s, most_queued
    for _ in range(60):
        rank.activities.begin("backward")
        for _ in range(40):
            rank.machine.cpu(5e-6)
            rank.machine.queue(0.34e-3)
        rank.activities.end()
        rank.machine.cpu(50e-6)
        rank.activities.stepped(rank.machine.now)
    rank.machine.wait()
    rank.activities.stepped(rank.machine.now)
    assert rank.seconds["backward"] == pytest.approx(60 * 40 * 0.34e-3, rel=0.1)


@pytest.mark.parametrize("place", range(25))
def test_a_stall_counts_once_wherever_it_falls_among_sampled_steps(rank, place):
    for number in range(200):
        rank.does("data", cpu=20.0 if number == 100 + place else 0.0001)
        rank.does("backward", cpu=0.0001, gpu=0.002)
        rank.machine.wait()
        rank.activities.stepped(rank.machine.now)
    assert rank.seconds["data"] == pytest.approx(20.0, abs=0.2)
    assert rank.seconds["backward"] == pytest.approx(0.4, rel=0.2)


def test_evaluations_and_saves_are_whole_also_where_steps_are_sampled(rank):
    for number in range(400):
        rank.does("backward", cpu=0.0001, gpu=0.002)
        if number % 100 == 37:
            rank.does("evaluation", cpu=0.002, gpu=0.02)
            rank.does("saving", cpu=0.001, gpu=0.01)
        rank.machine.wait()
        rank.activities.stepped(rank.machine.now)
    assert rank.seconds["evaluation"] == pytest.approx(0.08, rel=0.1)
    assert rank.seconds["saving"] == pytest.approx(0.04, rel=0.1)


def test_a_graph_is_captured_without_an_event_and_without_a_question(rank):
    for capturing in (False, True, False):
        rank.machine.capturing = capturing  # the model raises
        rank.machine.cpu(0.05)
        rank.step(backward=0.01)
        rank.machine.wait()
    before = rank.seconds["backward"]
    rank.machine.cpu(0.05)
    rank.step(backward=0.2)
    rank.machine.wait()
    rank.activities.stepped(rank.machine.now)
    assert rank.on_gpu == 1
    assert rank.seconds["backward"] - before == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize("tells_addresses", [True, False])
def test_an_activity_that_ends_in_another_stream_keeps_the_cpu_s_seconds(monkeypatch, tells_addresses):
    rank = Rank(monkeypatch, tells_addresses=tells_addresses)
    rank.machine.free_at.append(0.0)
    rank.activities.begin("forward")
    rank.machine.cpu(0.02)
    rank.machine.queue(5.0)
    rank.machine.stream = 1
    rank.activities.end()
    for _ in range(3):
        rank.activities.stepped(rank.machine.now)
    assert rank.seconds["forward"] == pytest.approx(0.02, rel=0.01)


def test_a_gpu_that_the_rank_does_not_use_gets_no_event(monkeypatch):
    rank = Rank(monkeypatch, context=False)
    rank.step(backward=0.1)
    rank.step(backward=0.1)
    assert rank.machine.events == 0
    assert rank.on_gpu == 0
    assert rank.seconds["backward"] == pytest.approx(0.002)


def test_after_an_error_of_the_gpu_the_times_are_those_of_the_cpu_and_say_so(rank):
    rank.step(backward=0.1)
    rank.machine.wait()
    rank.step(backward=0.1)
    rank.machine.broken = True
    for _ in range(3):
        rank.step(backward=0.1)
    assert rank.on_gpu == 0
    assert rank.seconds["optimizer"] > 0


def test_without_hooks_there_is_no_event(monkeypatch):
    monkeypatch.setenv("ALGORUN_HOOKS", "off")
    rank = Rank(monkeypatch)
    rank.step(backward=0.1)
    rank.step(backward=0.1)
    assert rank.machine.events == 0
