"""Values of a config.json with which training here would not be what transformers does with the same folder."""

import difflib
import math
from collections.abc import Iterator, Mapping

from algorun_train.common.errors import UserError

from .folder_files import Json

SINGLE = "single_label_classification"
LAYERDROP = ("layerdrop", "decoder_layerdrop")  # of each rank other layers, which replicas and shares cannot follow
CLOSE = 0.8  # how alike two keys are, as difflib counts it: rms_norm_epsilon and rms_norm_eps are 0.86


def refuse_values(where: str, config: Json, is_text: bool) -> None:
    """Raises UserError for a value that cannot be followed here."""
    for name, value in _named(config):
        key = name.rpartition(".")[2]
        if isinstance(value, float) and math.isnan(value):
            _refuse(where, name, value, "a number", "write the number that the model was trained with")
        if key == "quantization_config" and value:
            _refuse(where, name, "quantised weights", "full weights", "save the model without quantisation")
        if key in LAYERDROP and isinstance(value, (int, float)) and value > 0:
            _refuse(where, name, value, "0: all layers train in each step", "set it to 0")
    problem = config.get("problem_type")
    if not is_text and problem not in (None, SINGLE):
        _refuse(where, "problem_type", repr(problem), f"{SINGLE}, or no problem_type: the loss is cross-entropy over one "
                "class of each image", "remove the key if each image has one class")  # fmt: skip


def _refuse(where: str, name: str, value: object, allowed: str, fix: str) -> None:
    raise UserError(f"{where}: config.json has {name}: {value}; allowed: {allowed}; fix: {fix}")


def _named(config: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """All values with their names, those of inner configs as `text_config.NAME`."""
    for key, value in config.items():
        yield prefix + key, value
        if isinstance(value, Mapping):
            yield from _named(value, f"{prefix}{key}.")


def misspelt_keys(config: Json) -> list[tuple[str, str]]:
    """(key of config.json, the key that is meant): transformers knows only the second, and the file has only the first.
    transformers keeps such a key and goes on with its default."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[config["model_type"]]
    declared = set(getattr(kind, "__dataclass_fields__", ())) | set(kind.attribute_map)
    absent = sorted(declared - config.keys())
    near = ((key, difflib.get_close_matches(key, absent, 1, CLOSE)) for key in sorted(config.keys() - declared))
    return [(key, found[0]) for key, found in near if found and not hasattr(kind, key)]
