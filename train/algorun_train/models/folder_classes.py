"""The class of transformers, and its config, that a Hugging Face folder names."""

from collections.abc import Sequence
from typing import Any

import torch

from .folder_config import ModelFolder
from .folder_files import refused


def model_class(folder: ModelFolder) -> Any:  # Any: a class of transformers, which has no types for them
    import transformers

    return getattr(transformers, folder.architecture)


def make_config(folder: ModelFolder, classes: Sequence[str] | None) -> Any:  # Any: as above
    """transformers' config, for these classes. Raises UserError if config.json holds values that transformers refuses."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    values = {key: value for key, value in folder.config.items() if key not in ("auto_map", "torch_dtype")}
    if classes is not None:
        values.pop("num_labels", None)
        values |= {"id2label": dict(enumerate(classes)), "label2id": {name: i for i, name in enumerate(classes)}}
    with refused(f"{folder.source}: {folder.path}: config.json is refused by transformers"):
        config = CONFIG_MAPPING[folder.config["model_type"]].from_dict(values | {"dtype": "float32"})
        inner = config.sub_configs.get("text_config")
        if inner is None or model_class(folder).config_class is not inner:
            return config
        # as AutoModelForCausalLM: the language model of a model that also reads images has the inner config
        if inner.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            raise ValueError(
                f"{folder.architecture} is saved with a config ({inner.model_type}) that AutoModel does not read"
            )
        return config.get_text_config()


def skeleton(folder: ModelFolder, classes: Sequence[str] | None) -> Any:  # Any: as above
    """The model of transformers on torch's meta device: names and shapes of its weights, without memory. Raises UserError."""
    config = make_config(folder, classes)
    with refused(f"{folder.source}: {folder.path}: transformers cannot build this model"), torch.device("meta"):
        return model_class(folder)(config)
