"""Copies of a language model's config with few and narrow layers: what is tried on them costs little, whatever the model."""

import contextlib
import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

SMALL, MOST = 20_000_000, 1_000_000_000  # weights: of a model that is taken as it is, and of one that is built at all
FEW, NARROW, WORDS = 2, 64, 128
DEPTH = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "num_decoder_layers")
WIDTH = re.compile("intermediate_size|ffn_dim|ffn_hidden_size|n_inner|d_ff|dim_ff|feed_forward_size")
# Every how many layers there is another kind of layer, or at which one it begins.
KINDS = re.compile(
    "first_k_dense|dense_layers|layer_start|layer_period|layer_offset|layer_interval|sparse_step|every_n"
)
INSIDE = re.compile("rope|id2label|label2id|generation")  # inner values that are no config

Values = dict[str, Any]  # Any: values of a config


@dataclass(frozen=True, slots=True)
class Shrunk:
    """How many layers are left (0: all), and whether the layers' inner size and the vocabulary are cut."""

    layers: int
    narrow: bool
    few_words: bool


def small_models(kind: Any, config: Any, weights: int) -> Iterator[Any]:
    """Models of the class `kind` on the CPU, with random weights that are the same each time: the model of `config` if its number
    of `weights` is small, else copies of it, the smallest first. There may be none that can be built. Any: transformers has no
    types for them."""
    if weights <= SMALL:
        with contextlib.suppress(Exception):
            yield _built(kind, copy.deepcopy(config))
    values = config.to_dict()
    for shrunk in _ways(values.get("text_config", values)):
        try:
            smaller = type(config).from_dict(_cut(values, shrunk))
            with torch.device("meta"):
                few = count(kind(copy.deepcopy(smaller))) <= MOST
            if few:
                yield _built(kind, smaller)
        except Exception:  # this class needs sizes that fit each other in its own way: the next copy keeps more of them
            continue


def count(model: Any) -> int:
    """The number of a model's weights. Any: as above."""
    return sum(parameter.numel() for parameter in model.parameters())


def _built(kind: Any, config: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind(config)


def _depth(values: Values) -> int:
    return next((values[key] for key in DEPTH if type(values.get(key)) is int), 0)


def _ways(values: Values) -> Iterator[Shrunk]:
    depth = _depth(values)
    layers = dict.fromkeys((min(_all_kinds(values, depth), depth), min(FEW, depth), min(1, depth)))
    for narrow, few_words in ((True, True), (False, True), (True, False), (False, False)):
        for few in layers:
            yield Shrunk(few, narrow, few_words)


def _all_kinds(values: Values, depth: int) -> int:
    """How many of the first layers have one of each kind."""
    count = FEW
    for key, value in values.items():
        if (
            value
            and isinstance(value, list)
            and len(value) == depth
            and all(isinstance(each, (str, bool)) for each in value)
        ):
            count = max(count, *(value.index(each) + 1 for each in value))
        elif type(value) is int and KINDS.search(key):
            count = max(count, value + 1)
    return count


def _cut(values: Mapping[str, Any], shrunk: Shrunk) -> Values:
    depth = _depth(dict(values))
    return {key: _cut_one(key, value, depth, shrunk) for key, value in values.items()}


def _cut_one(key: str, value: Any, depth: int, shrunk: Shrunk) -> Any:
    if key in DEPTH and type(value) is int:
        return min(value, shrunk.layers or value)
    if key == "per_layer_config" and isinstance(value, dict) and shrunk.layers:
        return {layer: each for layer, each in value.items() if int(layer) < shrunk.layers}
    if isinstance(value, dict) and not INSIDE.search(key):
        return _cut(value, shrunk)
    if isinstance(value, list) and len(value) == depth > 0:
        return [_cut_one(key, each, 0, shrunk) for each in value[: shrunk.layers or depth]]
    if shrunk.narrow and type(value) is int and WIDTH.search(key):
        return min(value, NARROW)
    if shrunk.few_words and type(value) is int and key == "vocab_size":
        return min(value, WORDS)
    if shrunk.few_words and key.endswith(("_token_id", "_token_index")):
        return min(value, WORDS - 1) if type(value) is int else value if value is None else WORDS - 1
    return value
