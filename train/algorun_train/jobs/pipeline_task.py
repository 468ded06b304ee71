"""The models and data of the job `pipeline`: a GPT on text, a ViT on images, or a Hugging Face folder."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from algorun_train.checkpoint import artifact
from algorun_train.checkpoint.state_file import Values
from algorun_train.data import image_data, text
from algorun_train.data.batch import BatchSource
from algorun_train.loop.losses import PER_LABEL, PER_SAMPLE, Scoring
from algorun_train.models import gpt
from algorun_train.models.folder_config import ModelFolder
from algorun_train.models.image_models import build, specify
from algorun_train.options.folders import Folders
from algorun_train.options.job_options import PipelineJobOptions
from algorun_train.parallel.shard.sharded_model import Splits, TensorAxis
from algorun_train.ranks.communicator import Communicator

from .chosen_data import load_data
from .chosen_model import FolderJobModel, SplitStages, job_description, job_identity, job_inputs, write_trained
from .folder_options import for_folder, open_folder
from .tensor_parts import refuse_embedded

GPT_WIDTH, GPT_DEPTH, GPT_CONTEXT = 128, 8, 128
Weights = Mapping[str, torch.Tensor]
Write = Callable[[dict[str, torch.Tensor], Mapping[str, object], Path], Path]


def _write_embedded(state: dict[str, torch.Tensor], description: Mapping[str, object], folder: Path) -> Path:
    return artifact.write_model(folder, state, description)


@dataclass(frozen=True, slots=True)
class LateWeights:
    """The weights of a model that is cut before it has any.

    `build`: the model with weights, for the search for cuts; those of the folder on rank 0. Raises UserError.
    `fill`: fills the weights and buffers of this rank's stages, given by name, of which it may have parts; returns a line for the
    log. Call it on all ranks. Raises UserError, the same on all ranks.
    `split`: how the ranks of a tensor group split the stages. Call it on all ranks. Raises UserError, the same on all ranks, if the
    model cannot be split so.
    """

    build: Callable[[], nn.Module]
    fill: Callable[[Weights, Communicator, Splits | None], str]
    split: Callable[[TensorAxis, Communicator], SplitStages]


@dataclass(frozen=True, slots=True)
class PipelineTask:
    """The data, and what the job says about the model.

    `name`: the model's, for the log. `identity`: what a checkpoint and the job that resumes it have in common. `inputs`:
    checksums of what else was given, of which a difference is a warning.
    `description`: what the artifact says about the model. `sample` and `label`: input and target of one sample, all zeros.
    `lines`: lines for the log. `scoring`: how outputs are compared with labels. `write`: writes the artifact.
    `late`: for a model whose weights have no memory yet.
    """

    name: str
    source: BatchSource
    identity: Values
    description: Mapping[str, object]
    sample: torch.Tensor
    label: torch.Tensor
    lines: tuple[str, ...]
    scoring: Scoring = PER_SAMPLE
    write: Write = _write_embedded
    late: "LateWeights | None" = None
    inputs: Values = field(default_factory=dict)

    def example(self, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs [samples, ..] and labels [samples, ..]: an example batch."""
        return self.sample.expand(samples, *self.sample.shape).clone(), self.label.expand(samples, *self.label.shape)


def load(options: PipelineJobOptions, folders: Folders, comm: Communicator) -> tuple[PipelineTask, nn.Module]:
    """The task, and the model on the CPU, with equal weights on all ranks. Call it on all ranks.

    A folder's model is on the meta device: each rank gives memory to the weights of its stages only.
    Raises UserError, the same on all ranks, if the folder or the data cannot be used, or if sizes do not fit each other.
    """
    folder = open_folder(options, folders.base_model, comm)
    if folder:
        return _of_folder(for_folder(options, folder), folder, folders, comm)
    if options.tp > 1:
        raise refuse_embedded(options.model or "gpt", options.tp)
    return _vit(options, folders, comm) if options.model == "vit" else _gpt(options, folders, comm)


def _of_folder(
    options: PipelineJobOptions, folder: ModelFolder, folders: Folders, comm: Communicator
) -> tuple[PipelineTask, nn.Module]:
    data = load_data(options, folders, comm, folder)
    chosen = FolderJobModel(folder, data.classes, options.seed, on_meta=True)
    late = LateWeights(
        lambda: _whole(folder, data.classes, options.seed, comm.is_leader), chosen.fill_stages, chosen.split_stages
    )
    inputs, labels = data.example(1, torch.device("cpu"))
    task = PipelineTask(
        chosen.name,
        data.source,
        job_identity(chosen, data, options),
        job_description(chosen, data),
        inputs[0],
        labels[0],
        (data.line,),
        PER_LABEL,
        functools.partial(write_trained, folder, data.classes),
        late,
        job_inputs(folder, data, comm),
    )
    return task, chosen.module


def _whole(folder: ModelFolder, classes: Sequence[str] | None, seed: int, with_weights: bool) -> nn.Module:
    chosen = FolderJobModel(folder, classes, seed)
    if with_weights:
        chosen.first_weights()
    return chosen.module


def _gpt(options: PipelineJobOptions, folders: Folders, comm: Communicator) -> tuple[PipelineTask, nn.Module]:
    context = options.context or GPT_CONTEXT
    spec = gpt.GptSpec(
        context=context,
        width=options.width or GPT_WIDTH,
        depth=options.depth or GPT_DEPTH,
        heads=options.heads,
        dropout=options.dropout,
        tied=options.tied,
    )
    source = text.load(context, folders, comm)
    shapes = {key: value for key, value in spec.as_dict().items() if key != "dropout"}
    identity = shapes | {"optimizer": options.optimizer, "seed": options.seed, "text": source.checksum}
    if not options.tied:  # checkpoints of 0.1.0 have no such key
        identity.pop("tied")
    task = PipelineTask(
        "gpt",
        source,
        identity,
        spec.as_dict(),
        torch.zeros(context, dtype=torch.int64),
        torch.zeros(context, dtype=torch.int64),
        (f"data: {source.source}; {source.train_count} training and {source.validation_count} validation sequences "
         f"of {context} bytes",),
    )  # fmt: skip
    return task, gpt.build(spec, options.seed)


def _vit(options: PipelineJobOptions, folders: Folders, comm: Communicator) -> tuple[PipelineTask, nn.Module]:
    images = image_data.load(options, folders, comm)
    spec = specify(options, len(images.classes), images.side)
    shapes = {key: value for key, value in spec.as_dict().items() if key != "dropout"}
    identity = shapes | {"optimizer": options.optimizer, "seed": options.seed, "class_names": list(images.classes)}
    task = PipelineTask(
        "vit",
        images,
        identity | {"training_images": images.train_count},
        spec.as_dict() | {"class_names": list(images.classes)},
        torch.zeros(3, images.side, images.side),
        torch.zeros((), dtype=torch.int64),
        (f"data: {images.source}; {images.train_count} training and {images.validation_count} validation images "
         f"of {images.side} x {images.side}, {len(images.classes)} classes",),
        inputs={"images": images.checksum},
    )  # fmt: skip
    return task, build(spec, options.seed)
