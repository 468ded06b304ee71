"""smdistributed.modelparallel.torch on a GPU, which is pretended here: what is drawn at random."""

from __future__ import annotations

import contextlib
import pickle
from types import SimpleNamespace

import pytest
import torch

from smdistributed.modelparallel.core.staged_step import Mode, StagedBatch, StagedStep
from smdistributed.modelparallel.core.step_function import StepFunction
from tests.train.pretended_gpu import CUDA, PretendedGpu


@pytest.fixture(autouse=True)
def gpu():
    with PretendedGpu():
        yield


class Model:
    """What a step function calls, and who answers."""

    context = SimpleNamespace(axes=SimpleNamespace(device=CUDA), layout=SimpleNamespace(microbatches=2))

    @contextlib.contextmanager
    def answered_by(self, answer):
        self.answer = answer
        yield

    def __call__(self, inputs):
        return self.answer.call((inputs,), {})


class Answer:
    def call(self, args, kwargs):
        return args[0]


def test_noise_before_the_models_call_is_the_same_on_all_stages(monkeypatch):
    """The first stage's ranks draw it, the last stage's draw it again: on the CPU and on a GPU."""
    gpus = [torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)]
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    model, noise = Model(), []

    def function(inputs):
        on_gpu = torch.randn(3, generator=torch.cuda.default_generators[0])
        noise.append((on_gpu.tolist(), torch.randn(2).tolist()))
        return model(inputs)

    step = StagedStep(StepFunction(function, (), {}))
    monkeypatch.setattr(torch.cuda, "default_generators", (gpus[0],))
    prepared = step._prepared(model, {"inputs": torch.zeros(4, 2)}, Mode())
    random = pickle.loads(pickle.dumps(prepared.random))
    drawn, noise[:] = list(noise), []

    monkeypatch.setattr(torch.cuda, "default_generators", (gpus[1],))
    torch.manual_seed(99)
    before = torch.get_rng_state(), gpus[1].get_state()
    last = StagedBatch(prepared.parts, [], random)
    for number in (0, 1):
        step._answered(Answer(), model, last, number)
    assert noise == drawn
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(gpus[1].get_state(), before[1])
