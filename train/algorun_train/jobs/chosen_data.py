"""The data of `ddp`, and of folders in `pipeline`, by what the model reads: images, or text as tokens."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch

from algorun_train.data import image_data, token_data
from algorun_train.data.batch import BatchSource
from algorun_train.models.folder_config import ModelFolder
from algorun_train.options.folders import Folders
from algorun_train.options.job_options import ModelJobOptions
from algorun_train.ranks.communicator import Communicator


class ChosenData(Protocol):
    """A source and what the job must know of it. `classes` is None for text; `identity` is what a resumed job must share,
    `inputs` are checksums of which a difference is a warning."""

    source: BatchSource
    classes: Sequence[str] | None
    identity: Mapping[str, object]
    inputs: Mapping[str, object]
    line: str

    def example(self, count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels of `count` samples without content, in the shape and memory format of real ones."""
        ...


class ImageInputs:
    """Images in classes."""

    def __init__(self, options: ModelJobOptions, folders: Folders, comm: Communicator) -> None:
        images = image_data.load(options, folders, comm)
        self.source: BatchSource = images
        self.side = images.side
        self.classes: Sequence[str] | None = images.classes
        self.identity: Mapping[str, object] = {
            "class_names": list(images.classes),
            "training_images": images.train_count,
        }
        self.inputs: Mapping[str, object] = {"images": images.checksum}
        self.line = (
            f"data: {images.source}; {images.train_count} training and {images.validation_count} validation "
            f"images of {images.side} x {images.side}, {len(images.classes)} classes"
        )

    def example(self, count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        # The memory format is that of real batches (image_data): torch.compile compiles for one format.
        images = torch.zeros(count, self.side, self.side, 3, device=device).permute(0, 3, 1, 2)
        return images, torch.zeros(count, dtype=torch.int64, device=device)


class TokenInputs:
    """Text as sequences of `context` tokens."""

    classes: Sequence[str] | None = None

    def __init__(
        self, options: ModelJobOptions, folders: Folders, comm: Communicator, folder: ModelFolder, context: int
    ) -> None:
        tokens = token_data.load(options, folders, comm, Path(folder.path))
        self.source: BatchSource = tokens
        self._context = context
        self.identity: Mapping[str, object] = {"context": context, "text": tokens.checksum}
        self.inputs: Mapping[str, object] = {}
        self.line = (
            f"data: {tokens.source}; {tokens.train_count} training and {tokens.validation_count} validation sequences of "
            f"{context} tokens"
        )

    def example(self, count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.zeros(count, self._context, dtype=torch.int64, device=device)
        return tokens, tokens.clone()


def load_data(options: ModelJobOptions, folders: Folders, comm: Communicator, folder: ModelFolder | None) -> ChosenData:
    """The data that the model reads. Call it on all ranks. Raises UserError, the same on all ranks."""
    if folder and folder.tokens and options.context:
        return TokenInputs(options, folders, comm, folder, options.context)
    return ImageInputs(options, folders, comm)
