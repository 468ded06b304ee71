"""Objects between ranks on a GPU, which is pretended here: what travels from where."""

from __future__ import annotations

import pytest
import torch

from algorun_train.common.errors import UserError
from algorun_train.ranks import object_channel
from algorun_train.ranks.object_channel import ObjectChannel
from algorun_train.ranks.packing import Packing
from tests.train.pretended_gpu import CUDA, PretendedGpu

GROUP = "the group"
LARGE = 4097


class Wire:
    """torch.distributed between two ranks of one pipeline, the second after the first; tensors of the pretended GPU have
    no values to move."""

    def __init__(self) -> None:
        self.sent: list[torch.Tensor] = []
        self.receives = False

    def _move(self, tensor: torch.Tensor, group: object) -> None:
        assert group == GROUP
        if not self.receives:
            self.sent.append(tensor)
            return
        arrived = self.sent.pop(0)
        assert (arrived.shape, arrived.dtype, arrived.is_meta) == (tensor.shape, tensor.dtype, tensor.is_meta)
        if not tensor.is_meta:
            tensor.copy_(arrived)

    def broadcast(self, tensor: torch.Tensor, group: object, group_src: int) -> None:
        self._move(tensor, group)

    def get_global_rank(self, group: object, rank: int) -> int:
        assert group == GROUP
        return rank + 2

    def isend(self, tensor: torch.Tensor, group: object, group_dst: int) -> None:
        self._move(tensor, group)

    def recv(self, tensor: torch.Tensor, group: object, group_src: int) -> None:
        self._move(tensor, group)


@pytest.fixture(autouse=True)
def gpu():
    with PretendedGpu():
        yield


@pytest.fixture
def wire(monkeypatch):
    found = Wire()
    monkeypatch.setattr(object_channel, "dist", found)
    return found


def channel(device=CUDA, known=None):
    """That of a rank on the pretended GPU."""
    return ObjectChannel(GROUP, Packing(device, lambda value, error: f"{value}: {error}", known or {}, direct=True))


def values():
    on_gpu = {name: torch.zeros(shape, device=CUDA) for name, shape in (("loss", ()), ("logits", (LARGE, 4)))}
    return on_gpu | {"counts": torch.zeros(LARGE, dtype=torch.int16, device=CUDA), "host": torch.arange(LARGE)}


def test_what_is_on_a_gpu_is_broadcast_from_there(wire):
    assert channel().share(values(), 1, 1)["host"].device.type == "cpu"  # the sender's own stay what they are
    on_gpu = [tensor for tensor in wire.sent if tensor.is_meta]
    assert [tensor.nbytes for tensor in on_gpu] == [4 + 2 * LARGE, 16 * LARGE]  # what is small in one message
    assert {tensor.dtype for tensor in on_gpu} == {torch.uint8}  # NCCL has no int16
    wire.receives = True
    found = channel().share(None, 1, 0)
    assert {name: (each.device, each.dtype, each.shape) for name, each in found.items()} == {
        name: (CUDA, each.dtype, each.shape) for name, each in values().items()
    }
    assert not wire.sent


def test_what_is_on_a_gpu_is_sent_from_there(wire):
    channel().send(channel().packing.pack(values()), 1)
    assert sum(tensor.nbytes for tensor in wire.sent if tensor.is_meta) == 18 * LARGE + 4
    wire.receives = True
    found = channel().receive(0)
    assert {name: each.device for name, each in found.items()} == dict.fromkeys(values(), CUDA)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16, torch.bool, torch.complex64])
@pytest.mark.parametrize("shape", [(), (3, 0), (LARGE,), (2, LARGE)])
def test_on_the_cpu_all_values_arrive_as_they_are(wire, dtype, shape):
    value = torch.randn(shape).mul(10).to(dtype)
    several = [value, torch.randn(LARGE), value.T if value.dim() == 2 else value, torch.randn(8 * LARGE)]
    own = channel(torch.device("cpu"))
    own.share(several, 1, 1)
    wire.receives = True
    for arrived, sent in zip(own.share(None, 1, 0), several, strict=True):
        assert torch.equal(arrived, sent)


def test_what_every_rank_has_is_not_sent(wire):
    here, there = object(), object()
    sender, receiver = channel(known={"model": here}), channel(known={"model": there})
    sender.send(sender.packing.pack([here, 1]), 1)
    wire.receives = True
    assert receiver.receive(0) == [there, 1]


def test_where_nothing_can_be_sent_the_others_name_the_jobs_rank(wire):
    with pytest.raises(UserError, match="cannot pickle|Can't"):
        channel().share(lambda: 1, 1, 1)
    wire.receives = True
    with pytest.raises(UserError, match=r"^what rank 3 has cannot be sent; its error says why$"):
        channel().share(None, 1, 0)


def test_what_cannot_be_sent_must_be_only_where_it_holds_a_tensor(wire):
    kept = torch.ones(2)
    assert not channel().packing.must_be_sent(lambda: 1)
    assert channel().packing.must_be_sent(lambda: kept)
    assert channel().packing.must_be_sent(3)
    with pytest.raises(UserError, match="cannot pickle|Can't"):
        channel().packing.pack(lambda: 1)
