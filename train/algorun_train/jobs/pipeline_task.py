"""What a pipeline job trains: the model and its data, under one name."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from algorun_train.data import image_data, text
from algorun_train.data.batch import Source
from algorun_train.models import gpt
from algorun_train.models.image_models import build, specify
from algorun_train.options import paths
from algorun_train.options.config import PipelineConfig
from algorun_train.ranks.communicator import Communicator

GPT_WIDTH, GPT_DEPTH = 128, 8


@dataclass(frozen=True, slots=True)
class Task:
    """`identity` is what a checkpoint must share with the job that resumes it, `description` what comes with the
    artifact, `sample` the inputs of one sample, `label` what it is compared with."""

    source: Source
    identity: dict[str, Any]
    description: dict[str, Any]
    sample: torch.Tensor
    label: torch.Tensor
    lines: tuple[str, ...]

    def example(self, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels of this many samples."""
        return self.sample.expand(samples, *self.sample.shape).clone(), self.label.expand(samples, *self.label.shape)


def load(config: PipelineConfig, where: paths.Paths, comm: Communicator) -> tuple[Task, nn.Module]:
    """Data and a model with weights drawn from the seed, equal on all ranks, on the CPU. UserError as its parts do."""
    return _gpt(config, where, comm) if config.model == "gpt" else _vit(config, where, comm)


def _gpt(config: PipelineConfig, where: paths.Paths, comm: Communicator) -> tuple[Task, nn.Module]:
    spec = gpt.GptSpec(
        context=config.context,
        width=config.width or GPT_WIDTH,
        depth=config.depth or GPT_DEPTH,
        heads=config.heads,
        dropout=config.dropout,
        tied=config.tied,
    )
    source = text.load(config.context, where, comm)
    shapes = {key: value for key, value in spec.as_dict().items() if key != "dropout"}
    identity = shapes | {"optimizer": config.optimizer, "seed": config.seed, "text": source.checksum}
    if not config.tied:  # as in checkpoints of before there was a choice
        identity.pop("tied")
    task = Task(
        source,
        identity,
        spec.as_dict(),
        torch.zeros(config.context, dtype=torch.int64),
        torch.zeros(config.context, dtype=torch.int64),
        (f"data: {source.source}; {source.train_count} training and {source.validation_count} validation sequences "
         f"of {config.context} bytes",),
    )  # fmt: skip
    return task, gpt.build(spec, config.seed)


def _vit(config: PipelineConfig, where: paths.Paths, comm: Communicator) -> tuple[Task, nn.Module]:
    images = image_data.load(config, where, comm)
    spec = specify(config, len(images.classes), images.side)
    shapes = {key: value for key, value in spec.as_dict().items() if key != "dropout"}
    identity = shapes | {"optimizer": config.optimizer, "seed": config.seed, "class_names": list(images.classes)}
    task = Task(
        images,
        identity | {"training_images": images.train_count},
        spec.as_dict() | {"class_names": list(images.classes)},
        torch.zeros(3, images.side, images.side),
        torch.zeros((), dtype=torch.int64),
        (f"data: {images.source}; {images.train_count} training and {images.validation_count} validation images "
         f"of {images.side} x {images.side}, {len(images.classes)} classes",),
    )  # fmt: skip
    return task, build(spec, config.seed)
