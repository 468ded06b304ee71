"""Models of Hugging Face folders whose weights have no memory yet: each rank gives its shares memory later."""

from collections.abc import Sequence

import torch

from .folder_classes import skeleton
from .folder_config import ModelFolder
from .folder_files import refused
from .folder_model import FolderModule, ImageClassifier, LanguageModel, build_model
from .folder_weights import initialise
from .small_copy import SMALL, count
from .used_weights import used_on_meta


def is_large(folder: ModelFolder, classes: Sequence[str] | None) -> bool:
    """Whether to build the model without memory: a small one is built faster with its weights. Raises UserError."""
    return count(skeleton(folder, classes)) > SMALL


def build_on_meta(folder: ModelFolder, classes: Sequence[str] | None) -> FolderModule:
    """As `build_model`, with weights that have no memory (torch's meta device) and buffers that have. Raises UserError."""
    with refused(f"{folder.source}: {folder.path}: transformers cannot build this model"):
        model = skeleton(folder, classes)
        needed = used_on_meta(folder, classes)
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
