"""Models of Hugging Face folders: built by transformers, filled from the folder, and saved as such a folder."""

import contextlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.common.files import sync_folder
from algorun_train.common.names import same_name
from algorun_train.parallel.shard.layer_units import layer_units

from .folder_classes import make_config, model_class, skeleton
from .folder_config import ModelFolder
from .folder_files import refused
from .folder_weights import TensorPlan, draw_tensors, plan_tensors, read_tensors
from .image_processor import PROCESSOR, PROCESSORS, RGB, ImageInput
from .one_sequence import one_sequence_a_row
from .small_copy import SMALL, count
from .used_weights import used_by, used_on_meta
from .weight_files import beside
from .whole_loading import load_whole

SHARD_SIZE = "4GB"  # of a file of weights; larger models get several files and an index, as save_pretrained writes them
TEMPLATES = "additional_chat_templates"  # a folder: the named ones beside chat_template.jinja
# Files of a model that stay as they are: image processor, tokenizer, and how to generate text.
BESIDE = re.compile(
    r"(preprocessor_config|processor_config|generation_config|tokenizer.*|special_tokens_map|added_tokens|vocab|"
    r"chat_template)\.json|chat_template\.jinja|vocab\.txt|merges\.txt|.*\.model"
)
DRAWN = re.compile("drop")  # values of a config that change no weight's shape
NOT_SHAPES = {"transformers_version", "_name_or_path", "dtype", "torch_dtype", "architectures", "id2label", "label2id",
              "num_labels", "use_cache", "problem_type"}  # fmt: skip


def prepare_transformers() -> None:
    """Imports transformers, which from now on reaches no hub and prints errors only. Raises UserError if it is missing."""
    os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")  # read when transformers is imported
    try:
        from transformers.utils import logging
    except ImportError as error:
        raise UserError(
            f"option --model: a folder needs the package transformers: {error}; fix: pip install 'transformers>=5,<6'"
        ) from None
    logging.set_verbosity_error()
    logging.disable_progress_bar()


class ImageClassifier(nn.Module):
    """A model of transformers as this project's classifiers are called: images [B, 3, S, S] in -1..1 to logits [B, classes]."""

    draws_random_numbers = True  # transformers' models have many kinds of dropout, not all of them modules

    def __init__(self, model: nn.Module, images: ImageInput) -> None:
        super().__init__()
        self.model = model
        self._order = None if images.order == RGB else list(images.order)
        std, mean = (torch.tensor(values).view(3, 1, 1) for values in (images.std, images.mean))
        # (images + 1) / 2 is 0..1, as mean and std are meant
        self.register_buffer("scale", 0.5 / std, persistent=False)
        self.register_buffer("shift", (0.5 - mean) / std, persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.model(pixel_values=self.pixel_values(images)).logits)

    def pixel_values(self, images: torch.Tensor) -> torch.Tensor:
        """What the model sees, [B, 3, S, S]: the same as its image processor makes of these images."""
        ordered = images if self._order is None else images[:, self._order]
        return ordered * cast(torch.Tensor, self.scale) + cast(torch.Tensor, self.shift)


class LanguageModel(nn.Module):
    """A model of transformers as the loop calls it: tokens, int64 [B, T], to logits [B, T, words] of the token after each."""

    draws_random_numbers = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        with one_sequence_a_row():
            return cast(torch.Tensor, self.model(input_ids=tokens, use_cache=False).logits)


FolderModule = ImageClassifier | LanguageModel
INSIDE = "model."  # where a FolderModule has transformers' model


def build_model(folder: ModelFolder, classes: Sequence[str] | None, seed: int) -> FolderModule:
    """The model with weights drawn from `seed`; an image classifier gets a head for `classes`, for a language model they are
    None. Raises UserError for a config of nonsense.

    Weights that no result depends on are frozen: DistributedDataParallel waits for the gradient of every other one.
    """
    torch.manual_seed(seed)
    config = make_config(folder, classes)
    with refused(f"{folder.source}: {folder.path}: transformers cannot build this model"):
        model = model_class(folder)(config)
        module: FolderModule = ImageClassifier(model, folder.images) if folder.images else LanguageModel(model)
        side = folder.images.side if folder.images else 0
        example = torch.zeros(1, 3, side, side) if side else torch.zeros(1, folder.example, dtype=torch.int64)
        on_meta = used_on_meta(folder, classes) if count(model) > SMALL else None  # else a pass costs less than that
        used = used_by(module, example) if on_meta is None else {INSIDE + name for name in on_meta}
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in used)
    return module


@dataclass(frozen=True, slots=True)
class FirstWeights:
    """What training starts from. `loaded` has the tensors if transformers had to load them, else it is empty: they are read
    one by one. `line` is for the log."""

    plan: TensorPlan
    loaded: dict[str, torch.Tensor]
    line: str


def first_weights(folder: ModelFolder, classes: Sequence[str] | None) -> FirstWeights:
    """Finds the weights and checks that they fit. Raises UserError if they cannot be read or do not fit config.json."""
    where = f"{folder.source}: {folder.path}"
    model = skeleton(folder, classes)
    if folder.weights is None:
        names = tuple(name for name, _ in model.named_parameters())
        return FirstWeights(TensorPlan({}, names, ()), {}, f"{where}: no weights there; starting from random ones")
    head = set() if classes is None else head_names(folder, classes)
    keep = classes is None or _same_classes(folder, classes)
    loaded: dict[str, torch.Tensor] = {}
    try:
        plan = plan_tensors(model, Path(folder.path), folder.weights, head, keep)
    except Exception:  # whatever is wrong with the files: transformers' loading names it
        plan = None
    if plan is None:
        plan, loaded = load_whole(folder, classes, head, keep)
    count = len(model.state_dict())
    line = f"{where}: {count - len(plan.fresh)} of {count} tensors taken from {folder.weights}"
    if plan.fresh:
        line += f"; new head for {len(classes or ())} classes: {', '.join(plan.fresh)}"
    if plan.unused:
        line += f"; not used: {', '.join(plan.unused[:3])}{' ..' if len(plan.unused) > 3 else ''}"
    if also := beside(Path(folder.path), folder.weights):
        line += f"; not read: {', '.join(also)}"
    return FirstWeights(plan, loaded, line)


def taken_tensors(first: FirstWeights, folder: ModelFolder) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of the folder, whole, one after the other; those that transformers has loaded are freed on the way."""
    if not first.loaded:
        yield from read_tensors(Path(folder.path), first.plan, {})
    for name in list(first.loaded):
        yield name, first.loaded.pop(name)


def drawn_tensors(
    first: FirstWeights, folder: ModelFolder, classes: Sequence[str] | None, seed: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights that start anew, whole, one unit of sharding after the other; the same bits on every rank."""
    if not first.plan.fresh:
        return
    model = skeleton(folder, classes)
    yield from draw_tensors(model, layer_units(model), first.plan.fresh, seed)


def load_weights(module: FolderModule, folder: ModelFolder, classes: Sequence[str] | None, seed: int = 0) -> str:
    """Copies the folder's weights into the model, tensor by tensor; what the folder lacks is drawn from `seed`. Returns a line
    for the log. Raises UserError if the weights cannot be read or do not fit config.json."""
    return load_into(module.model.state_dict(), folder, classes, seed)


def load_into(
    own: Mapping[str, torch.Tensor], folder: ModelFolder, classes: Sequence[str] | None, seed: int = 0
) -> str:
    """As `load_weights`, into these tensors, by their names in transformers' model."""
    first = first_weights(folder, classes)
    for name, tensor in itertools.chain(taken_tensors(first, folder), drawn_tensors(first, folder, classes, seed)):
        own[name].copy_(tensor)
        del tensor  # before the next one is read
    return first.line


def head_names(folder: ModelFolder, classes: Sequence[str]) -> set[str]:
    """The weights whose shapes depend on the number of classes."""
    some, more = (skeleton(folder, names).state_dict() for names in (classes, [*classes, "another"]))
    return {name for name in some if some[name].shape != more[name].shape}


def _same_classes(folder: ModelFolder, classes: Sequence[str]) -> bool:
    """Whether the folder's head is for these classes. Names such as LABEL_3 are transformers' own and say nothing."""
    labels = folder.config.get("id2label")
    if not isinstance(labels, Mapping):
        return True  # the shapes have decided
    names = [same_name(str(labels.get(str(i)))) for i in range(len(labels))]
    return names == list(map(same_name, classes)) or names == [f"LABEL_{i}" for i in range(len(classes))]


def identity(folder: ModelFolder) -> dict[str, object]:
    """What a checkpoint and the job that resumes it have in common of the model: JSON values."""
    shapes = {name: value for name, value in folder.config.items() if name not in NOT_SHAPES and not DRAWN.search(name)}
    return {"model": folder.architecture} | {f"config.{name}": value for name, value in sorted(shapes.items())}


def write_folder(
    folder: ModelFolder, classes: Sequence[str] | None, state: Mapping[str, torch.Tensor], target: Path
) -> Path:
    """Writes a model to `target` as a folder that from_pretrained reads; returns it. `state` is that of a FolderModule.

    Raises OSError. The files are written aside and then renamed; what an earlier job left of weights is removed.
    """
    copies: dict[object, torch.Tensor] = {}  # tied weights stay one tensor, which save_pretrained writes once
    own = {
        name.removeprefix(INSIDE): copies.setdefault((tensor.data_ptr(), tensor.shape), tensor.detach().cpu())
        for name, tensor in state.items()
    }
    model = skeleton(folder, classes)  # the weights are in `state`
    with new_files(folder, target) as aside:
        model.save_pretrained(aside, state_dict=own, max_shard_size=SHARD_SIZE)
    return target


@contextlib.contextmanager
def new_files(folder: ModelFolder, target: Path) -> Iterator[Path]:
    """A folder to write a model to. At the end its files and the tokenizer or processor of `folder` move to `target`; what an
    earlier job left there of weights, adapters and their configs is removed."""
    aside = target / ".new"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    yield aside
    for file in Path(folder.path).iterdir():
        if BESIDE.fullmatch(file.name):
            shutil.copyfile(file, aside / file.name)
        elif file.name == TEMPLATES and file.is_dir():
            shutil.copytree(file, aside / file.name)
    if folder.images:  # a job crops and resizes in its own way, and the artifact says so
        for name in PROCESSORS:
            (aside / name).unlink(missing_ok=True)
        (aside / PROCESSOR).write_text(json.dumps(folder.images.processor, indent=2) + "\n", encoding="utf-8")
    for pattern in ("model*.safetensors*", "adapter_*", "config.json", *(PROCESSORS if folder.images else ())):
        for old in target.glob(pattern):
            if not (aside / old.name).exists():
                old.unlink()
    shutil.rmtree(target / TEMPLATES, ignore_errors=True)
    for file in aside.iterdir():  # not common.files.aside: all files are written before the first one is replaced
        file.replace(target / file.name)
    aside.rmdir()
    sync_folder(target)
