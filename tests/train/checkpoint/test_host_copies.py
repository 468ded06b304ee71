"""A checkpoint's tensors leave a GPU side by side, and one wait ends them; shown on a device that copies only when it is asked."""

import pytest
import torch

from algorun_train.checkpoint.shard_saver import MODEL, ShardSaver
from algorun_train.checkpoint.shards import ShardStore, model_state
from algorun_train.ranks import host_copies
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.host_copies import HostCopies
from algorun_train.ranks.world import World
from tests.train.checkpoint.test_strange_folders import state

ALONE = Communicator(World(), torch.device("cpu"))


class LateDevice:
    """Every tensor is on it, and a copy is made when somebody waits. `room` is how many bytes it can pin."""

    def __init__(self, room: int = 2**40) -> None:
        self.room, self.sizes, self.queue, self.waits = room, [], [], 0

    def holds(self, tensor):
        return True

    def pinned(self, size):
        if sum(self.sizes) + size > self.room:
            return None
        self.sizes.append(size)
        return torch.full((size,), 255, dtype=torch.uint8)

    def copy(self, into, source):
        self.queue.append((into, source))

    def wait(self):
        self.waits += 1
        for into, source in self.queue:
            into.copy_(source)
        self.queue.clear()


def tensors():
    return [
        torch.arange(6.0).view(2, 3).t(),
        torch.tensor([True, False]),
        torch.tensor(3, dtype=torch.int64),
        torch.rand(5, 7, dtype=torch.float64),
        torch.empty(0, 4),
        torch.rand(33).to(torch.bfloat16),
    ]


@pytest.mark.parametrize("room", [2**40, 0])
def test_copies_are_those_of_the_tensors_after_one_wait(room):
    device = LateDevice(room)
    copies, sources = HostCopies(device), tensors()
    found = [copies.copy(each) for each in sources]
    assert not torch.equal(found[3], sources[3])  # nothing has waited
    copies.wait()
    for one, other in zip(found, sources, strict=True):
        assert one.dtype == other.dtype
        assert one.is_contiguous()
        assert torch.equal(one, other)
    assert device.waits == 1
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in found if each.numel()}
    assert sorted(storages.values()) == sorted(
        each.nbytes for each in sources if each.numel()
    )  # torch.save writes them whole


def test_pieces_become_one_tensor_without_the_rows_that_fill_up():
    pieces = [torch.full((3, 2), float(number)) for number in range(3)]
    for copies in (HostCopies(LateDevice()), HostCopies()):
        whole = copies.joined(pieces, torch.Size([5, 2]))
        copies.wait()
        assert whole[:, 0].tolist() == [0, 0, 0, 1, 1]


def test_pinned_memory_stays_and_is_little_more_than_the_copies(monkeypatch):
    monkeypatch.setattr(host_copies, "SEGMENT", 2**14)
    monkeypatch.setattr(host_copies, "LEAST", 2**10)
    device = LateDevice()
    copies = HostCopies(device)
    sizes = [100, 5_000, 40_000, 700, 12_000, 3_000, 9_000]
    for _ in range(3):
        copies.begin()
        made = [copies.copy(torch.full((size,), size % 100, dtype=torch.uint8)) for size in sizes]
        copies.wait()
        assert [int(each[-1]) for each in made] == [size % 100 for size in sizes]
        assert all(size & (size - 1) == 0 for size in device.sizes)
        assert sum(device.sizes) <= sum(sizes) + 2 * 2**14
    assert len(device.sizes) <= 6


def test_a_checkpoint_has_the_weights_of_its_step_although_they_change_at_once(tmp_path):
    device = LateDevice()
    saver = ShardSaver(ShardStore(tmp_path, 2), ALONE, lambda text: None, HostCopies(device))
    for step in (1, 2):
        saved = state(step)
        wanted = {name: tensor.clone() for name, tensor in saved[MODEL].items()}
        assert wanted
        saver.save(step, 1, {0: saved})
        for tensor in saved[MODEL].values():
            tensor.fill_(-1)
        assert not device.queue
        saver.finish()
        assert device.waits == step
        written = model_state(tmp_path)
        assert all(torch.equal(written[name], tensor) for name, tensor in wanted.items())
