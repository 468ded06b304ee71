"""The models and data of the job `pipeline`: a GPT on text, or a ViT on images."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from algorun_train.checkpoint.state_file import Identity
from algorun_train.data import image_data, text
from algorun_train.data.batch import Source
from algorun_train.models import gpt
from algorun_train.models.image_models import build, specify
from algorun_train.options.folders import Folders
from algorun_train.options.job_options import PipelineJobOptions
from algorun_train.ranks.communicator import Communicator

GPT_WIDTH, GPT_DEPTH = 128, 8


@dataclass(frozen=True, slots=True)
class PipelineTask:
    """The data, and what the job says about the model.

    `identity`: what a checkpoint and the job that resumes it have in common. `description`: what the artifact says about
    the model. `sample` and `label`: input and target of one sample, all zeros. `lines`: lines for the log.
    """

    source: Source
    identity: Identity
    description: Mapping[str, object]
    sample: torch.Tensor
    label: torch.Tensor
    lines: tuple[str, ...]

    def example(self, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs [samples, ..] and labels [samples, ..]: an example batch."""
        return self.sample.expand(samples, *self.sample.shape).clone(), self.label.expand(samples, *self.label.shape)


def load(options: PipelineJobOptions, folders: Folders, comm: Communicator) -> tuple[PipelineTask, nn.Module]:
    """The task, and the model on the CPU. Its weights are drawn from the seed, so they are equal on all ranks. Raises
    UserError if the data cannot be used, or if sizes do not fit each other."""
    return _gpt(options, folders, comm) if options.model == "gpt" else _vit(options, folders, comm)


def _gpt(options: PipelineJobOptions, folders: Folders, comm: Communicator) -> tuple[PipelineTask, nn.Module]:
    spec = gpt.GptSpec(
        context=options.context,
        width=options.width or GPT_WIDTH,
        depth=options.depth or GPT_DEPTH,
        heads=options.heads,
        dropout=options.dropout,
        tied=options.tied,
    )
    source = text.load(options.context, folders, comm)
    shapes = {key: value for key, value in spec.as_dict().items() if key != "dropout"}
    identity = shapes | {"optimizer": options.optimizer, "seed": options.seed, "text": source.checksum}
    if not options.tied:  # checkpoints of 0.1.0 have no such key
        identity.pop("tied")
    task = PipelineTask(
        source,
        identity,
        spec.as_dict(),
        torch.zeros(options.context, dtype=torch.int64),
        torch.zeros(options.context, dtype=torch.int64),
        (f"data: {source.source}; {source.train_count} training and {source.validation_count} validation sequences "
         f"of {options.context} bytes",),
    )  # fmt: skip
    return task, gpt.build(spec, options.seed)


def _vit(options: PipelineJobOptions, folders: Folders, comm: Communicator) -> tuple[PipelineTask, nn.Module]:
    images = image_data.load(options, folders, comm)
    spec = specify(options, len(images.classes), images.side)
    shapes = {key: value for key, value in spec.as_dict().items() if key != "dropout"}
    identity = shapes | {"optimizer": options.optimizer, "seed": options.seed, "class_names": list(images.classes)}
    task = PipelineTask(
        images,
        identity | {"training_images": images.train_count},
        spec.as_dict() | {"class_names": list(images.classes)},
        torch.zeros(3, images.side, images.side),
        torch.zeros((), dtype=torch.int64),
        (f"data: {images.source}; {images.train_count} training and {images.validation_count} validation images "
         f"of {images.side} x {images.side}, {len(images.classes)} classes",),
    )  # fmt: skip
    return task, build(spec, options.seed)
