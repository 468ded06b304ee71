"""Models that look at a mask before their layers, in the ways in which models do it."""

import torch
from torch import nn

from tests.train.parallel import model_zoo

ROWS, LENGTH = 3, 6


def mask(*lengths):
    return model_zoo.padded(ROWS, LENGTH, list(lengths))


class Masked(nn.Module):
    """Gives its mask to `way` before the layers; they get what comes of it."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x, weights=None):
            x = self.linear(x).tanh()
            return x if weights is None else x * weights

    def __init__(self, way, extra=None) -> None:
        super().__init__()
        self.way, self.extra = way, extra
        self.embed, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.layers = nn.ModuleList(self.Layer() for _ in range(4))

    def forward(self, x, mask):
        x = self.embed(x)
        weights = self.way(self, mask, x)
        for layer in self.layers:
            x = layer(x, weights)
        return self.head(x)


def branch(model, mask, x):
    return None if mask.all() else mask.unsqueeze(-1)


def share(model, mask, x):
    return mask.unsqueeze(-1) / mask.sum().item()


def longest(model, mask, x):
    weights = torch.zeros(x.shape[:2], device=x.device)
    weights[:, : mask.long().sum(-1).max()] = 1
    return weights.unsqueeze(-1)


def places(model, mask, x):
    row, column = mask.nonzero(as_tuple=True)
    weights = torch.zeros(x.shape[:2], device=x.device)
    weights[row, column] = 0.5
    return weights.unsqueeze(-1)


def listed(model, mask, x):
    return torch.tensor(mask.tolist(), dtype=x.dtype, device=x.device).unsqueeze(-1)


def in_place(model, mask, x):
    mask.mul_(2) if mask.dtype != torch.bool else mask.logical_not_()
    return mask.unsqueeze(-1) if (mask == 0).any() else None


def by_module(model, mask, x):
    return model.extra(mask)


def counted(model, mask, x):
    return mask.unsqueeze(-1) / model.extra(mask)


class Weights(nn.Module):
    def forward(self, mask):
        return None if mask.all() else mask.unsqueeze(-1)


class Count(nn.Module):
    def forward(self, mask):
        return mask.sum().item()


class Lists(nn.Module):
    def forward(self, mask):
        return {"rows": mask.tolist()}


def by_lists(model, mask, x):
    return torch.tensor(model.extra(mask)["rows"], dtype=x.dtype, device=x.device).unsqueeze(-1)


WAYS = [branch, share, longest, places, listed, in_place, (by_module, Weights), (counted, Count), (by_lists, Lists)]
