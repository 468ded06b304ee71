"""The largest of all ranks' values: right for any number of ranks, and few messages for each."""

import queue
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from algorun.inside.dissemination import Dissemination, partners
from tests.conftest import examples


class Network:
    """Ranks as threads; a message is a queue's item. `sent` counts those of each rank, `received` likewise."""

    def __init__(self, size):
        self.size, self.queues, self.lock = size, defaultdict(queue.Queue), threading.Lock()
        self.sent, self.received = Counter(), Counter()

    def largest(self, rows):
        """What each rank gets that has this row."""
        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(lambda rank: Dissemination(Rank(self, rank)).largest(rows[rank]), range(self.size)))


class Rank:
    def __init__(self, network, rank):
        self.network, self.rank, self.size = network, rank, network.size

    def swap(self, values, to, source):
        network = self.network
        network.sent[self.rank] += 1
        self._queue(self.rank, to).put(values)
        arrived = self._queue(source, self.rank).get(timeout=60)
        network.received[self.rank] += 1
        return arrived

    def _queue(self, *pair):
        with self.network.lock:  # two threads that ask a defaultdict for one queue at a time may get one each
            return self.network.queues[pair]


@examples(100)
@given(st.lists(st.lists(st.floats(-9, 9), min_size=2, max_size=2), min_size=1, max_size=20))
def test_every_rank_learns_the_largest_of_all(rows):
    wanted = [max(column) for column in zip(*rows, strict=True)]
    assert Network(len(rows)).largest(rows) == [wanted] * len(rows)


def test_of_256_ranks_none_sends_or_receives_more_than_8_messages():
    """A ring, which Gloo's all-gather is, makes each rank send 255 after each other."""
    network = Network(256)
    rows = [[float(rank == 77), 0.0, -1.0 - rank] for rank in range(256)]
    assert network.largest(rows) == [[1.0, 0.0, -1.0]] * 256
    assert network.sent == network.received == dict.fromkeys(range(256), 8)


def test_a_pair_of_ranks_never_has_two_messages_of_one_exchange_in_flight():
    for size in range(2, 70):
        for rank in range(size):
            found = partners(rank, size)
            assert len({to for to, _ in found}) == len(found) == len({source for _, source in found})
            assert rank not in {to for to, _ in found}
            assert all(partners(to, size)[number][1] == rank for number, (to, _) in enumerate(found))


def test_one_rank_asks_nobody():
    assert partners(0, 1) == []
    assert Network(1).largest([[3.0]]) == [[3.0]]
