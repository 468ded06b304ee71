"""How ranks agree on a stop and on a save, without ranks."""

import time

from algorun.inside.stop_agreement import Agreement, StopVerdict
from algorun.inside.stop_flag import StopFlag


class Peers:
    """A communicator whose other rank has these wishes."""

    def __init__(self, stop: float = 0.0, save: float = 0.0, every: float = 256.0, rank: int = 0) -> None:
        self.row, self.calls, self.rank = [stop, save, -every], 0, rank

    def largest(self, values):
        self.calls += 1
        return [max(pair) for pair in zip(values, self.row, strict=True)]


def test_one_rank_s_wish_to_stop_counts_for_all():
    flag = StopFlag()
    assert Agreement(Peers(), flag).poll() == StopVerdict(stop=False, save=False)
    assert Agreement(Peers(stop=1.0), flag).poll() == StopVerdict(stop=True, save=False)
    flag.wanted = True
    assert Agreement(Peers(), flag).poll().stop


def test_rank_0_alone_decides_on_saving():
    assert Agreement(Peers(rank=1), StopFlag()).poll(save_due=True) == StopVerdict()
    assert Agreement(Peers(rank=1, save=1.0), StopFlag()).poll(save_due=False) == StopVerdict(save=True)
    assert Agreement(Peers(), StopFlag()).poll(save_due=True) == StopVerdict(save=True)


def test_quick_steps_are_agreed_on_seldom_and_at_the_smallest_wish():
    peers = Peers(every=10.0)
    agreement = Agreement(peers, StopFlag())
    agreement.poll()
    for _ in range(100):
        agreement.poll()
    assert 1 + 100 // 10 <= peers.calls <= 1 + 100
    peers = Peers()
    agreement = Agreement(peers, StopFlag())
    for _ in range(2000):  # far less than a microsecond each but for the calls themselves
        agreement.poll()
    assert peers.calls < 200


class Clock:
    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def polls_until_the_next_exchange(agreement, peers, clock, step_s):
    before, polls = peers.calls, 0
    while peers.calls == before:
        clock.now += step_s
        agreement.poll()
        polls += 1
    return polls


def test_the_first_call_measures_nothing(monkeypatch):
    """It comes at the end of the first step: a script that calls once in a minute must not wait for 256 minutes."""
    clock, peers = Clock(monkeypatch), Peers()
    agreement = Agreement(peers, StopFlag())
    agreement.poll()
    assert peers.calls == 1
    for _ in range(5):
        assert polls_until_the_next_exchange(agreement, peers, clock, 60.0) == 1


def test_a_few_quick_steps_among_slow_ones_mean_little(monkeypatch):
    clock, peers = Clock(monkeypatch), Peers()
    agreement = Agreement(peers, StopFlag())
    agreement.poll()
    assert [polls_until_the_next_exchange(agreement, peers, clock, 0.001) for _ in range(8)] == [
        1,
        2,
        4,
        8,
        16,
        32,
        64,
        64,
    ]
    assert (
        polls_until_the_next_exchange(agreement, peers, clock, 1.0) == 64
    )  # about a minute, as SageMaker's grace allows
    assert polls_until_the_next_exchange(agreement, peers, clock, 1.0) == 1
