"""The model that `ddp` trains: one of the embedded classifiers, or a Hugging Face folder."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from algorun_train.checkpoint import artifact
from algorun_train.common.errors import UserError
from algorun_train.models import folder_model
from algorun_train.models.folder_config import ModelFolder, read_folder
from algorun_train.models.image_models import build, specify
from algorun_train.models.pretrained import start_from
from algorun_train.options.job_options import EMBEDDED, DdpJobOptions
from algorun_train.ranks.communicator import Communicator

from .ddp_data import DdpData, ImageInputs

CONTEXT = 1024  # tokens of a sequence if the option is not given; a model that sees fewer at once gets its own limit


class DdpModel(Protocol):
    """A model and what the job must know of it. `identity` is what a resumed job must share."""

    module: nn.Module
    name: str
    identity: Mapping[str, object]
    description: Mapping[str, object]

    def first_weights(self) -> str | None:
        """Loads the weights that training starts from, on rank 0 alone; a line for the log. Raises UserError."""
        ...

    def write(self, state: dict[str, torch.Tensor], description: Mapping[str, object], folder: Path) -> Path:
        """Writes the trained model, on rank 0 alone; returns what the log names. Raises OSError."""
        ...


class EmbeddedModel:
    """The vit or the convnet."""

    def __init__(self, options: DdpJobOptions, classes: Sequence[str], side: int) -> None:
        self._start = options.init_from
        self._spec = specify(options, len(classes), side)
        self.module: nn.Module = build(self._spec, options.seed)
        self.name = self._spec.model
        self.identity: Mapping[str, object] = {k: v for k, v in self._spec.as_dict().items() if k != "dropout"}
        self.description: Mapping[str, object] = self._spec.as_dict()

    def first_weights(self) -> str | None:
        return start_from(self.module, self._start) if self._start else None

    def write(self, state: dict[str, torch.Tensor], description: Mapping[str, object], folder: Path) -> Path:
        return artifact.write_model(folder, state, description)


class FolderJobModel:
    """A model of a Hugging Face folder; an image classifier has a head for `classes`, for a language model they are None."""

    def __init__(self, folder: ModelFolder, classes: Sequence[str] | None, seed: int) -> None:
        self._folder, self._classes = folder, classes
        self._module = folder_model.build_model(folder, classes, seed)
        self.module: nn.Module = self._module
        self.name = f"{folder.architecture} of {folder.path}"
        self.identity: Mapping[str, object] = folder_model.identity(folder)
        self.description: Mapping[str, object] = {"model": folder.architecture}

    def first_weights(self) -> str | None:
        return folder_model.load_weights(self._module, self._folder, self._classes)

    def write(self, state: dict[str, torch.Tensor], description: Mapping[str, object], folder: Path) -> Path:
        written = folder_model.write_folder(self._module, self._folder, state, folder)
        artifact.write_description(folder, description)
        return written


def choose_model(options: DdpJobOptions, folder: ModelFolder | None, data: DdpData) -> DdpModel:
    """The model of the folder, else the embedded one, for this data. Call it on all ranks: weights are equal on all of them
    only after DDP has sent them. Raises UserError."""
    if folder:
        return FolderJobModel(folder, data.classes, options.seed)
    assert isinstance(data, ImageInputs)  # only folders have language models
    return EmbeddedModel(options, data.classes or (), data.side)


def open_folder(options: DdpJobOptions, channel: Path | None, comm: Communicator) -> ModelFolder | None:
    """The folder that option or channel names, as rank 0 has it; None for an embedded model. Call it on all ranks.

    Raises UserError, the same on all ranks, if it cannot be trained or an option is for embedded models.
    """
    path = channel if options.model is None else None if options.model in EMBEDDED else Path(options.model)
    if path is None:
        return None
    source = "channel 'model'" if options.model is None else "option --model"
    for name in ("init_from", "patch_size", "width", "depth", "heads", "dropout"):
        if getattr(options, name) != getattr(DdpJobOptions(), name):
            raise UserError(
                f"option --{name.replace('_', '-')}: {getattr(options, name)}, with {source} {path}; allowed: with an "
                f"embedded model ({', '.join(EMBEDDED)}); fix: leave it out, the folder's config.json decides"
            )
    comm.on_all(folder_model.prepare_transformers)
    return comm.from_leader(lambda: read_folder(path, source))


def for_folder(options: DdpJobOptions, folder: ModelFolder) -> DdpJobOptions:
    """The options with the size of images or the context that the folder's model takes. Raises UserError if the model cannot
    take what is asked for."""
    if folder.tokens:
        return replace(options, context=_context(options, folder, folder.tokens.context))
    if options.context is not None:
        raise UserError(
            f"option --context: {options.context}, with the image classifier {folder.path}; allowed: with a language model; "
            "fix: leave it out"
        )
    side, fixed = folder.images.side if folder.images else 0, folder.config.get("image_size")
    asked = options.image_size or side
    if asked != side or (isinstance(fixed, int) and fixed != side):
        raise UserError(
            f"option --image-size: {asked}, but {folder.path} takes {side} by its image processor"
            f"{f' and {fixed} by its config.json' if isinstance(fixed, int) else ''}; allowed: one size for all; "
            "fix: leave --image-size out, and save model and processor with the same size"
        )
    return replace(options, image_size=side)


def _context(options: DdpJobOptions, folder: ModelFolder, limit: int | None) -> int:
    if options.image_size is not None:
        raise UserError(
            f"option --image-size: {options.image_size}, with the language model {folder.path}; allowed: with an image "
            "classifier; fix: leave it out"
        )
    asked = options.context or min(limit or CONTEXT, CONTEXT)
    if limit is not None and asked > limit:
        raise UserError(
            f"option --context: {asked} is more than the {limit} tokens that {folder.path} sees at once, by its config.json; "
            f"allowed: 1 to {limit}; fix: give a smaller one"
        )
    return asked
