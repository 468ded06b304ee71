"""Units of sharding: each layer, and each module beside the layers, alone."""

import pytest
from torch import nn

from algorun_train.models.image_models import build
from algorun_train.models.image_spec import ModelSpec
from algorun_train.parallel.shard.layer_units import layer_list, layer_units


def names(model):
    known = {id(module): name for name, module in model.named_modules()}
    return [known[id(unit)] for unit in layer_units(model)]


@pytest.mark.parametrize(
    ("kind", "beside"), [("vit", ["patches", "norm", "head"]), ("convnet", ["stem", "norm", "head"])]
)
def test_norm_and_head_are_units_of_their_own(kind, beside):
    model = build(ModelSpec(kind, 10, 8, 2, 64, 3, 4, 0.0), 0)
    assert sorted(names(model)) == sorted([*beside, "blocks.0", "blocks.1", "blocks.2"])
    assert layer_list(model) == list(model.blocks)


class Language(nn.Module):
    """Named as in folders of Hugging Face: the layers lie deeper than the head."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(11, 8)
        self.model.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.model.norm = nn.LayerNorm(8)
        self.lm_head = nn.Linear(8, 11, bias=False)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight


LAYERS = ["model.layers.0", "model.layers.1", "model.norm"]


def test_modules_beside_the_layers_and_around_them():
    assert names(Language(tied=False)) == ["model.embed_tokens", *LAYERS, "lm_head"]


def test_a_tied_head_and_its_embedding_stay_in_the_model_s_own_unit():
    assert names(Language(tied=True)) == LAYERS


def test_a_model_without_a_list_is_split_at_its_modules():
    model = nn.Module()
    model.one, model.two, model.none = nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU()
    assert names(model) == ["one", "two"]
    assert layer_list(model) == []
