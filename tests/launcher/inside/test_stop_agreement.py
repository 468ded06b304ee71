"""How ranks agree on a stop and on a save, without ranks."""

from algorun.inside.stop_agreement import Agreement, Verdict
from algorun.inside.stop_flag import StopFlag


class Peers:
    """A communicator whose other rank has these wishes."""

    def __init__(self, stop: float = 0.0, save: float = 0.0, every: float = 256.0) -> None:
        self.row, self.calls = [stop, save, every], 0

    def exchange(self, values):
        self.calls += 1
        return [values, self.row]


def test_one_rank_s_wish_to_stop_counts_for_all():
    flag = StopFlag()
    assert Agreement(Peers(), flag).poll() == Verdict(stop=False, save=False)
    assert Agreement(Peers(stop=1.0), flag).poll() == Verdict(stop=True, save=False)
    flag.wanted = True
    assert Agreement(Peers(), flag).poll().stop


def test_rank_0_alone_decides_on_saving():
    assert Agreement(Peers(save=1.0), StopFlag()).poll(save_due=False) == Verdict()
    assert Agreement(Peers(), StopFlag()).poll(save_due=True) == Verdict(save=True)


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
