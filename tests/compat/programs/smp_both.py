"""A small model in stages beside the same model whole, for the programs that train it. Imported before smp.init()."""

import copy

import torch
from torch import nn

import smdistributed.modelparallel.torch as smp


def refused(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(number):
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(number))


@smp.step
def train_step(model, inputs):
    loss = model(inputs).square().mean()
    model.backward(loss)
    return loss


def equal(one, other):
    """Nested dictionaries and lists with tensors that are close."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.allclose(one.cpu(), other.cpu(), atol=1e-6)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


class Both:
    """The model in stages, and the same one whole."""

    def __init__(self, seed=0, rate=0.01, kind=torch.optim.AdamW):
        self.whole = net(seed)
        self.whole_optimizer = kind(self.whole.parameters(), lr=rate)
        self.model = smp.DistributedModel(copy.deepcopy(self.whole))
        self.optimizer = smp.DistributedOptimizer(kind(self.model.parameters(), lr=rate))

    def train(self, numbers):
        for number in numbers:
            self.optimizer.zero_grad()
            train_step(self.model, batch(number))
            self.optimizer.step()
            self.whole_optimizer.zero_grad()
            self.whole(batch(number)).square().mean().backward()
            self.whole_optimizer.step()

    def same(self):
        """Weights and the whole state of the optimizer, those of the whole model."""
        state = self.optimizer.state_dict()
        return [
            equal(dict(self.model.state_dict()), dict(self.whole.state_dict())),
            equal(state["state"], self.whole_optimizer.state_dict()["state"]),
            equal(state["param_groups"], self.whole_optimizer.state_dict()["param_groups"]),
        ]
