"""The model that `ddp` trains, and `pipeline` if it is a folder: one of the embedded classifiers, or a Hugging Face folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from algorun_train.checkpoint import artifact
from algorun_train.checkpoint.state_file import Values
from algorun_train.models import folder_model
from algorun_train.models.folder_classes import skeleton
from algorun_train.models.folder_config import ModelFolder
from algorun_train.models.folder_meta import build_on_meta, is_large
from algorun_train.models.image_models import build, specify
from algorun_train.models.pretrained import start_from
from algorun_train.models.small_copy import count
from algorun_train.models.tensor_plan import split_model
from algorun_train.options.job_options import DdpJobOptions, ModelJobOptions
from algorun_train.parallel.shard.sharded_model import SplitModel, Splits, TensorAxis
from algorun_train.parallel.shard.split import Split, TensorParts
from algorun_train.ranks.communicator import LONG_WORK, Communicator

from .chosen_data import ChosenData, ImageInputs
from .first_shares import fill_shares
from .tensor_parts import checked_plan, refuse_embedded
from .weights_checksum import processor_checksum, weights_checksum

INSIDE = "model."  # where a FolderModule has transformers' model


class ChosenModel(Protocol):
    """A model and what the job must know of it. `identity` is what a resumed job must share."""

    module: nn.Module
    name: str
    identity: Mapping[str, object]
    description: Mapping[str, object]
    always_reads_folder: bool
    """whether a checkpoint lacks weights of the folder: a job that resumes reads them from there, too"""

    def first_weights(self) -> str | None:
        """Loads the weights that training starts from, on rank 0 alone; a line for the log. Raises UserError."""
        ...

    def fill_shares(self, comm: Communicator) -> str | None:
        """As `first_weights`, for a sharded model that had no memory. Call it on all ranks. Raises UserError on all ranks."""
        ...

    def split(self, axis: TensorAxis, comm: Communicator) -> TensorParts:
        """Leaves each rank of a tensor group its part of the weights, which have no memory yet; returns how, by the names in
        `module`. Call it on all ranks. Raises UserError, the same on all ranks, if the model cannot be split so."""
        ...

    def write(self, state: dict[str, torch.Tensor], description: Mapping[str, object], folder: Path) -> Path:
        """Writes the trained model, on rank 0 alone; returns what the log names. Raises OSError."""
        ...


class EmbeddedModel:
    """The vit or the convnet."""

    always_reads_folder = False

    def __init__(self, options: DdpJobOptions, classes: Sequence[str], side: int) -> None:
        self._start = options.init_from
        self._spec = specify(options, len(classes), side)
        self.module: nn.Module = build(self._spec, options.seed)
        self.name = self._spec.model
        self.identity: Mapping[str, object] = {k: v for k, v in self._spec.as_dict().items() if k != "dropout"}
        self.description: Mapping[str, object] = self._spec.as_dict()

    def first_weights(self) -> str | None:
        return start_from(self.module, self._start) if self._start else None

    def fill_shares(self, comm: Communicator) -> str | None:
        return None  # it was built whole: it is small

    def split(self, axis: TensorAxis, comm: Communicator) -> TensorParts:
        def refuse() -> TensorParts:
            raise refuse_embedded(self.name, axis.ranks)

        return comm.on_all(refuse)  # a rank that left would break the group that others still make

    def write(self, state: dict[str, torch.Tensor], description: Mapping[str, object], folder: Path) -> Path:
        return artifact.write_model(folder, state, description)


@dataclass(frozen=True, slots=True)
class SplitStages:
    """How the ranks of a tensor group split a model in stages.

    `split` is called with the module of a stage, where the model has its place as in `FolderJobModel.module`: it leaves this rank its
    part of the weights, and returns how. `held`: the share of all weights that a rank has. `words`: those of which a rank of the
    last stage has the logits; None: all.
    """

    split: SplitModel
    held: float
    words: Split | None


class FolderJobModel:
    """A model of a Hugging Face folder; an image classifier has a head for `classes`, for a language model they are None.

    If it is built `on_meta`, its weights have no memory until somebody gives them some."""

    always_reads_folder = False

    def __init__(self, folder: ModelFolder, classes: Sequence[str] | None, seed: int, on_meta: bool = False) -> None:
        self._folder, self._classes, self._seed = folder, classes, seed
        self._module = build_on_meta(folder, classes) if on_meta else folder_model.build_model(folder, classes, seed)
        self.module: nn.Module = self._module
        self.name = f"{folder.architecture} of {folder.path}"
        self.identity: Mapping[str, object] = folder_model.identity(folder)
        self.description: Mapping[str, object] = {"model": folder.architecture}
        self._splits: Splits | None = None

    def first_weights(self) -> str | None:
        return folder_model.load_weights(self._module, self._folder, self._classes, self._seed)

    def fill_shares(self, comm: Communicator) -> str:
        return fill_shares(self._names(), self._folder, self._classes, self._seed, comm, splits=self._splits)

    def split(self, axis: TensorAxis, comm: Communicator) -> TensorParts:
        parts = split_model(self._module.model, checked_plan(self._folder, self._classes, axis, comm), axis)
        self._splits = Splits(parts.splits, axis)
        return parts.inside(INSIDE)

    def split_stages(self, axis: TensorAxis, comm: Communicator) -> SplitStages:
        """As `split`, for a model in stages."""
        plan = checked_plan(self._folder, self._classes, axis, comm)
        whole = skeleton(self._folder, self._classes)
        weights = count(whole)
        words = split_model(whole, plan, axis).words
        return SplitStages(
            lambda stage: split_model(stage.model, plan, axis).inside(INSIDE), count(whole) / weights, words
        )

    def fill_stages(self, weights: Mapping[str, torch.Tensor], comm: Communicator, splits: Splits | None) -> str:
        """As `fill_shares`, for a model in stages. `weights` are the weights and buffers that this rank has, by their names in
        `module`, whose own weights may have no memory."""
        own = {name.removeprefix(INSIDE): tensor for name, tensor in weights.items()}
        inner = splits.renamed({name.removeprefix(INSIDE): name for name in splits.by_name}) if splits else None
        return fill_shares(self._names(), self._folder, self._classes, self._seed, comm, own, inner)

    def _names(self) -> dict[str, torch.Tensor]:
        named: dict[str, torch.Tensor] = self._module.model.state_dict(keep_vars=True)
        return named

    def write(self, state: dict[str, torch.Tensor], description: Mapping[str, object], folder: Path) -> Path:
        return write_trained(self._folder, self._classes, state, description, folder)


def write_trained(
    folder: ModelFolder,
    classes: Sequence[str] | None,
    state: dict[str, torch.Tensor],
    description: Mapping[str, object],
    target: Path,
) -> Path:
    """Writes a folder's trained model and its description to `target`, on rank 0 alone. Returns `target`. Raises OSError."""
    written = folder_model.write_folder(folder, classes, state, target)
    artifact.write_description(target, description)
    return written


def job_identity(chosen: ChosenModel, data: ChosenData, options: ModelJobOptions) -> Values:
    """What a checkpoint and the job that resumes it have in common. Ranks, batch, epochs and learning rate may differ."""
    return {**chosen.identity, "optimizer": options.optimizer, "seed": options.seed, **data.identity}


def job_inputs(folder: ModelFolder | None, data: ChosenData, comm: Communicator) -> Values:
    """Checksums of what the job was given, by name: weights and image processor of a folder, and images beyond their number.
    Call it on all ranks."""
    if folder is None:
        return data.inputs
    checksums = comm.from_leader(lambda: weights_checksum(folder) | processor_checksum(folder), LONG_WORK)
    return {**checksums, **data.inputs}


def job_description(chosen: ChosenModel, data: ChosenData) -> Mapping[str, object]:
    """What the artifact says about the model."""
    return {**chosen.description, **({"class_names": list(data.classes)} if data.classes is not None else {})}


def choose_model(options: DdpJobOptions, folder: ModelFolder | None, data: ChosenData, sharded: bool) -> ChosenModel:
    """The model of the folder, else the embedded one, for this data. Call it on all ranks: weights are equal on all of them
    only after DDP has sent them. The weights of a folder's model have no memory yet if it is `sharded` or large. Raises
    UserError."""
    if folder:
        return FolderJobModel(folder, data.classes, options.seed, sharded or is_large(folder, data.classes))
    assert isinstance(data, ImageInputs)  # only folders have language models
    return EmbeddedModel(options, data.classes or (), data.side)
