"""The model of `ddp --lora RANK`: a Hugging Face folder of which only adapters, and the head of a classifier, train."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from algorun_train.checkpoint import artifact
from algorun_train.common.errors import UserError
from algorun_train.models import folder_model, lora
from algorun_train.models.folder_config import ModelFolder
from algorun_train.models.folder_meta import build_on_meta, is_large
from algorun_train.models.folder_model import INSIDE
from algorun_train.models.tensor_plan import plain_name, split_model
from algorun_train.options.job_options import DdpJobOptions
from algorun_train.parallel.shard.sharded_model import Splits, TensorAxis
from algorun_train.parallel.shard.split import TensorParts
from algorun_train.ranks.communicator import LONG_WORK, Communicator

from .first_shares import fill_shares
from .tensor_parts import checked_plan
from .weights_checksum import weights_checksum


def check_lora(options: DdpJobOptions, folder: ModelFolder | None, comm: Communicator) -> None:
    """Raises UserError, the same on all ranks, if there is nothing to adapt or peft is missing. Call it on all ranks."""
    if not options.lora:
        return
    if folder is None:
        raise UserError(
            f"option --lora: {options.lora}, with an embedded model; allowed: with a Hugging Face folder; fix: give --model "
            "FOLDER, or leave --lora out"
        )
    if folder.weights is None:
        raise UserError(
            f"option --lora: {options.lora}, but {folder.path} has no weights that adapters could change; allowed: a folder "
            "with weights; fix: give one, or leave --lora out"
        )
    comm.on_all(lora.prepare_peft)


def lora_spec(options: DdpJobOptions) -> lora.LoraSpec:
    """What the options ask for."""
    targets = tuple(word.strip() for word in options.lora_targets.split(",")) if options.lora_targets else None
    return lora.LoraSpec(options.lora, options.lora_alpha or options.lora, targets)


class LoraJobModel:
    """A folder's model with adapters. Weights of a `sharded` or large model have no memory yet.

    Call it on all ranks. Raises UserError, the same on all ranks.
    """

    always_reads_folder = True  # a checkpoint has the adapters only

    def __init__(
        self,
        options: DdpJobOptions,
        folder: ModelFolder,
        classes: Sequence[str] | None,
        comm: Communicator,
        sharded: bool = False,
    ) -> None:
        self._folder, self._classes, self._seed, self._merge = folder, classes, options.seed, options.merge
        self._spec = lora_spec(options)
        self._head = set() if classes is None else folder_model.head_names(folder, classes)
        on_meta = sharded or is_large(folder, classes)
        self._module = (
            build_on_meta(folder, classes) if on_meta else folder_model.build_model(folder, classes, options.seed)
        )
        self._names = frozenset(self._module.model.state_dict())
        self._targets = lora.choose_targets(self._module.model, folder, self._spec, self._head)
        self._drawn = self._adapt(self._module)
        self.module: nn.Module = self._module
        self._splits: Splits | None = None  # by the names in `module`
        trained = sum(each.numel() for each in self._module.parameters() if each.requires_grad)
        words = ", ".join(self._targets)
        self.name = (
            f"{folder.architecture} of {folder.path}, {trained} weights train (LoRA of rank {options.lora} on {words})"
        )
        asked = {"lora": options.lora, "lora_alpha": self._spec.alpha, "lora_targets": list(self._targets)}
        # A checkpoint has the adapters only: with other weights below them it would be another model.
        weights = comm.from_leader(lambda: weights_checksum(folder), LONG_WORK)
        self.identity: Mapping[str, object] = folder_model.identity(folder) | asked | weights
        self.description: Mapping[str, object] = {"model": folder.architecture, **asked, "merged": options.merge}

    def first_weights(self) -> str:
        with torch.no_grad():
            base = lora.base_weights(self._module, self._names)
            line = folder_model.load_into(base, self._folder, self._classes, self._seed)
        lora.start_trained(self._module, self._drawn)
        return line

    def fill_shares(self, comm: Communicator) -> str:
        base = lora.base_weights(self._module, self._names)
        splits = self._splits and self._splits.renamed(
            {plain_name(name.removeprefix(INSIDE)): name for name in self._splits.by_name}
        )
        line = fill_shares(base, self._folder, self._classes, self._seed, comm, splits=splits)
        lora.start_trained(self._module, self._drawn, self._splits)
        return line

    def split(self, axis: TensorAxis, comm: Communicator) -> TensorParts:
        parts = split_model(self._module.model, checked_plan(self._folder, self._classes, axis, comm), axis)
        inside = parts.inside(INSIDE)
        self._splits = Splits(inside.splits, axis)
        return inside

    def write(self, state: dict[str, torch.Tensor], description: Mapping[str, object], folder: Path) -> Path:
        if self._merge:
            whole = folder_model.build_model(self._folder, self._classes, self._seed)
            folder_model.load_weights(whole, self._folder, self._classes, self._seed)
            self._adapt(whole)
            merged = lora.merged_state(whole, state)
            written = folder_model.write_folder(self._folder, self._classes, merged, folder)
        else:
            written = lora.write_adapters(self._module, self._folder, state, folder)
        artifact.write_description(folder, description)
        return written

    def _adapt(self, module: folder_model.FolderModule) -> dict[str, torch.Tensor]:
        return lora.add_adapters(module, self._folder, self._spec, self._targets, self._head, self._seed)
