"""What a folder with a Hugging Face model says of itself, read from its JSON files. Nothing in the folder is executed."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from algorun_train.common.errors import UserError

from .config_values import refuse_values
from .folder_files import Json, read_json, refused
from .image_processor import PROCESSORS, ImageInput, read_image_input
from .token_input import TOKENIZER, TokenInput, read_token_input
from .weight_files import find_weights, refuse_adapter, refuse_pointers

CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder that can be trained, as rank 0 has read it: `architecture` is a class of transformers. `source` names the
    folder in messages. `weights` is the name of the file with the weights (or with their index); None: there are none.
    `images` is None for a language model, and `tokens` for an image classifier. `example` is the number of tokens of a
    sequence at which the weights are looked for that no result depends on. `notes` are lines for the log."""

    path: str
    source: str
    architecture: str
    config: Json
    weights: str | None
    images: ImageInput | None
    tokens: TokenInput | None
    example: int = 2
    notes: tuple[str, ...] = ()


def read_folder(path: Path, source: str) -> ModelFolder:
    """Reads a folder. `source` is the option or channel that names it. Raises UserError if the folder cannot be trained."""
    where = f"{source}: {path}"
    refuse_adapter(where, path)
    refuse_pointers(where, path, (CONFIG, TOKENIZER, *PROCESSORS))
    config = _read_config(where, path)
    architecture, is_text = _architecture(where, config)
    if config.get("auto_map") and config["model_type"] not in known_types():
        raise UserError(
            f"{where}: {CONFIG} has auto_map; allowed: models whose code transformers has; fix: save the model without code "
            "of its own"
        )
    refuse_values(where, config, is_text)
    images = None if is_text else read_image_input(where, path, config)
    tokens = read_token_input(where, path, config) if is_text else None
    return ModelFolder(str(path), source, architecture, config, find_weights(where, path, config), images, tokens)


def _read_config(where: str, path: Path) -> Json:
    """The values of config.json as transformers reads them: it has its own way to write infinity."""
    from transformers import PreTrainedConfig

    read_json(where, path / CONFIG, "a folder that save_pretrained wrote")
    with refused(f"{where}: {CONFIG} cannot be read"):
        found: Json = PreTrainedConfig.get_config_dict(path, local_files_only=True)[0]
    return found


def known_types() -> Collection[object]:
    """The model types that the installed transformers has code for."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return tuple(CONFIG_MAPPING_NAMES)


def _architecture(where: str, config: Json) -> tuple[str, bool]:
    """The class of transformers to train, and whether it is a language model. An image model without a head, such as
    ViTModel, gets the head of its type."""
    from transformers.models.auto import modeling_auto as auto

    given, kind = config.get("architectures"), config.get("model_type")
    if not isinstance(given, list) or len(given) != 1 or not isinstance(kind, str):
        raise UserError(
            f"{where}: {CONFIG} has architectures {given!r} and model_type {kind!r}; allowed: one architecture and its "
            "type; fix: save the model with save_pretrained"
        )
    name, images = str(given[0]), auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    if kind in known_types() and kind in images:
        heads = _names(images[kind])
        if name in heads:
            return name, False
        if name in _names(auto.MODEL_MAPPING_NAMES.get(kind, "")):
            return heads[0], False
    if kind in known_types() and name in _names(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind, "")):
        return name, True
    raise UserError(
        f"{where}: architecture {name!r} in {CONFIG} cannot be trained here; allowed: image classification "
        "(..ForImageClassification of transformers) and causal language models (..ForCausalLM, GPT2LMHeadModel); "
        "fix: give a folder with such a model"
    )


def _names(value: str | Sequence[str]) -> tuple[str, ...]:
    """The classes of a mapping's entry: most have one, some a tuple."""
    return (value,) if isinstance(value, str) else tuple(value)
