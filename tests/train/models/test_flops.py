"""The operations of a language model for a token."""

from __future__ import annotations

import torch
from torch import nn

from algorun_train.models.flops import flops_per_token


class Model(nn.Module):
    def __init__(self, tied):
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 8), nn.Embedding(4, 8)
        self.layer, self.head = nn.Linear(8, 8), nn.Linear(8, 50, bias=False)
        if tied:
            self.head.weight = self.tokens.weight


def test_weights_that_are_only_looked_up_do_not_count():
    assert flops_per_token(Model(tied=False)) == 6 * (8 * 8 + 8 + 8 * 50)
    assert flops_per_token(Model(tied=True)) == 6 * (8 * 8 + 8 + 8 * 50)


def test_frozen_weights_have_no_gradients_of_their_own():
    model = Model(tied=False)
    model.layer.requires_grad_(False)
    assert flops_per_token(model) == 4 * (8 * 8 + 8) + 6 * 8 * 50


def test_a_model_without_memory_is_counted_too():
    with torch.device("meta"):
        assert flops_per_token(Model(tied=False)) == 6 * (8 * 8 + 8 + 8 * 50)
