"""smdistributed.modelparallel.torch on a GPU, which is pretended here: what a step sends, and what is drawn at random."""

from __future__ import annotations

import contextlib
import pickle
from types import SimpleNamespace

import pytest
import torch

from smdistributed.modelparallel.torch import session, wire
from smdistributed.modelparallel.torch.step import Prepared, Step
from tests.train.pretended_gpu import CUDA, PretendedGpu

GROUP = "the pipeline's group"
LARGE = 4097


class Channel:
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

    def isend(self, tensor: torch.Tensor, group: object, group_dst: int) -> None:
        self._move(tensor, group)

    def recv(self, tensor: torch.Tensor, group: object, group_src: int) -> None:
        self._move(tensor, group)


@pytest.fixture
def rank(monkeypatch):
    """A rank of two on the pretended GPU; its place is to be set."""
    axes = SimpleNamespace(device=CUDA, pp_group=GROUP, pp_rank=0)
    here = SimpleNamespace(axes=axes, model=None, optimizer=None, layout=SimpleNamespace(microbatches=2))
    monkeypatch.setattr(session, "_session", here)
    with PretendedGpu():
        yield axes


@pytest.fixture
def channel(monkeypatch):
    found = Channel()
    monkeypatch.setattr(wire, "dist", found)
    return found


def values():
    on_gpu = {name: torch.zeros(shape, device=CUDA) for name, shape in (("loss", ()), ("logits", (LARGE, 4)))}
    return on_gpu | {"counts": torch.zeros(LARGE, dtype=torch.int16, device=CUDA), "host": torch.arange(LARGE)}


def test_results_on_a_gpu_are_broadcast_from_there(rank, channel):
    rank.pp_rank = 1
    assert wire.share(values(), 1)["host"].device.type == "cpu"  # the sender's own stay what they are
    on_gpu = [tensor for tensor in channel.sent if tensor.is_meta]
    assert [tensor.nbytes for tensor in on_gpu] == [4 + 2 * LARGE, 16 * LARGE]  # what is small in one message
    assert {tensor.dtype for tensor in on_gpu} == {torch.uint8}  # NCCL has no int16
    rank.pp_rank, channel.receives = 0, True
    found = wire.share(None, 1)
    assert {name: (each.device, each.dtype, each.shape) for name, each in found.items()} == {
        name: (CUDA, each.dtype, each.shape) for name, each in values().items()
    }
    assert not channel.sent


def test_a_batch_on_a_gpu_is_sent_from_there(rank, channel):
    packed, _ = wire.packed_batch(values(), [], frozenset())
    wire.send(packed, 1)
    assert sum(tensor.nbytes for tensor in channel.sent if tensor.is_meta) == 18 * LARGE + 4
    rank.pp_rank, channel.receives = 1, True
    found, random, own = wire.receive(0)
    assert {name: each.device for name, each in found.items()} == dict.fromkeys(values(), CUDA)
    assert (random, own) == ([], frozenset())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16, torch.bool, torch.complex64])
@pytest.mark.parametrize("shape", [(), (3, 0), (LARGE,), (2, LARGE)])
def test_on_the_cpu_all_values_arrive_as_they_are(rank, channel, dtype, shape):
    rank.device, rank.pp_rank = torch.device("cpu"), 1
    value = torch.randn(shape).mul(10).to(dtype)
    several = [value, torch.randn(LARGE), value.T if value.dim() == 2 else value, torch.randn(8 * LARGE)]
    wire.share(several, 1)
    rank.pp_rank, channel.receives = 0, True
    for arrived, sent in zip(wire.share(None, 1), several, strict=True):
        assert torch.equal(arrived, sent)


class Model:
    """What a step function calls, and who answers."""

    training = True

    @contextlib.contextmanager
    def answered_by(self, answer):
        self.answer = answer
        yield

    def __call__(self, inputs):
        return self.answer.call((inputs,), {})


class Answer:
    def call(self, args, kwargs):
        return args[0]


def test_noise_before_the_models_call_is_the_same_on_all_stages(rank, channel, monkeypatch):
    """The first stage's ranks draw it, the last stage's draw it again: on the CPU and on a GPU."""
    gpus = [torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)]
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    model, noise = Model(), []

    def function(inputs):
        on_gpu = torch.randn(3, generator=torch.cuda.default_generators[0])
        noise.append((on_gpu.tolist(), torch.randn(2).tolist()))
        return model(inputs)

    step = Step(function, (), {}, True)
    monkeypatch.setattr(torch.cuda, "default_generators", (gpus[0],))
    prepared = step._prepared(session.session(), model, {"inputs": torch.zeros(4, 2)})
    random = pickle.loads(pickle.dumps(prepared.random))
    drawn, noise[:] = list(noise), []

    monkeypatch.setattr(torch.cuda, "default_generators", (gpus[1],))
    torch.manual_seed(99)
    before = torch.get_rng_state(), gpus[1].get_state()
    last = Prepared(prepared.parts, [], random)
    for number in (0, 1):
        step._answered(Answer(), model, last, number)
    assert noise == drawn
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(gpus[1].get_state(), before[1])
