"""Models of Hugging Face folders whose weights have no memory yet: each rank gives its shares memory later."""

from collections.abc import Sequence

import torch

from .folder_config import ModelFolder
from .folder_files import refused
from .folder_model import FolderModule, ImageClassifier, LanguageModel, build_model, make_config, model_class
from .folder_weights import initialise


def build_on_meta(folder: ModelFolder, classes: Sequence[str] | None) -> FolderModule:
    """As `build_model`, with weights that have no memory (torch's meta device) and buffers that have. Raises UserError."""
    with refused(f"{folder.source}: {folder.path}: transformers cannot build this model"):
        with torch.device("meta"):
            model = model_class(folder)(make_config(folder, classes))
        needed = _needed_on_meta(folder, classes)
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                module.register_buffer(name, torch.zeros_like(buffer, device="cpu"),
                                       name not in module._non_persistent_buffers_set)  # fmt: skip
        with torch.no_grad():
            initialise(model, model)
    if needed is None:
        needed = {name for name, p in build_model(folder, classes, 0).model.named_parameters() if p.requires_grad}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in needed)
    return ImageClassifier(model, folder.images) if folder.images else LanguageModel(model)


def _needed_on_meta(folder: ModelFolder, classes: Sequence[str] | None) -> set[str] | None:
    """The weights that a result depends on; None if the model computes only with values."""
    with torch.device("meta"):
        model = model_class(folder)(make_config(folder, classes)).eval()
        try:
            if folder.images:
                result = model(pixel_values=torch.zeros(1, 3, *[folder.images.side] * 2))
            else:  # without a mask of four dimensions transformers looks at values
                tokens, mask = torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 1, 2, 2)
                result = model(input_ids=tokens, attention_mask=mask, use_cache=False)
            result.logits.sum().backward()
        except Exception:  # each model has its own way to fail without values; the CPU then decides
            return None
    return {name for name, parameter in model.named_parameters() if parameter.grad is not None}
