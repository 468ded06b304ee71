"""Models of Hugging Face folders: built by transformers, filled from the folder, and saved as such a folder."""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.common.files import sync_folder

from .folder_config import ImageInput, ModelFolder, refused

SHARD_SIZE = "4GB"  # of a file of weights; larger models get several files and an index, as save_pretrained writes them
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
        std, mean = (torch.tensor(values).view(3, 1, 1) for values in (images.std, images.mean))
        # (images + 1) / 2 is 0..1, as mean and std are meant
        self.register_buffer("scale", 0.5 / std, persistent=False)
        self.register_buffer("shift", (0.5 - mean) / std, persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scaled = images * cast(torch.Tensor, self.scale) + cast(torch.Tensor, self.shift)
        return cast(torch.Tensor, self.model(pixel_values=scaled).logits)


class LanguageModel(nn.Module):
    """A model of transformers as the loop calls it: tokens, int64 [B, T], to logits [B, T, words] of the token after each."""

    draws_random_numbers = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.model(input_ids=tokens, use_cache=False).logits)


FolderModule = ImageClassifier | LanguageModel


def model_class(folder: ModelFolder) -> Any:  # Any: a class of transformers, which has no types for them
    import transformers

    return getattr(transformers, folder.architecture)


def make_config(folder: ModelFolder, classes: Sequence[str] | None) -> Any:  # Any: as above
    """transformers' config, for these classes. Raises UserError if config.json holds values that transformers refuses."""
    from transformers import CONFIG_MAPPING

    values = {key: value for key, value in folder.config.items() if key not in ("auto_map", "torch_dtype")}
    if classes is not None:
        values.pop("num_labels", None)
        values |= {"id2label": dict(enumerate(classes)), "label2id": {name: i for i, name in enumerate(classes)}}
    with refused(f"{folder.source}: {folder.path}: config.json is refused by transformers"):
        return CONFIG_MAPPING[folder.config["model_type"]].from_dict(values | {"dtype": "float32"})


def build_model(folder: ModelFolder, classes: Sequence[str] | None, seed: int) -> FolderModule:
    """The model with weights drawn from `seed`; an image classifier gets a head for `classes`, for a language model they are
    None. Raises UserError for a config of nonsense.

    Weights that no result depends on are frozen: DistributedDataParallel waits for the gradient of every other one.
    """
    torch.manual_seed(seed)
    config = make_config(folder, classes)
    module: FolderModule
    with refused(f"{folder.source}: {folder.path}: transformers cannot build this model"):
        model = model_class(folder)(config)
        if folder.images:
            module, example = ImageClassifier(model, folder.images), torch.zeros(1, 3, *[folder.images.side] * 2)
        else:
            module, example = LanguageModel(model), torch.zeros(1, 2, dtype=torch.int64)
        module.eval()
        module(example).sum().backward()
    for parameter in module.parameters():
        parameter.requires_grad_(parameter.grad is not None)
        parameter.grad = None
    return module


def load_weights(module: FolderModule, folder: ModelFolder, classes: Sequence[str] | None) -> str:
    """Copies the folder's weights into the model; the head starts anew if the classes differ. Returns a line for the log.

    Raises UserError if the weights cannot be read or do not fit config.json.
    """
    where = f"{folder.source}: {folder.path}"
    if folder.weights is None:
        return f"{where}: no weights there; starting from random ones"
    with refused(f"{where}: {folder.weights} cannot be read"):
        loaded, report = model_class(folder).from_pretrained(
            folder.path,
            config=make_config(folder, classes),
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            local_files_only=True,
            trust_remote_code=False,
            weights_only=True,
            dtype=torch.float32,
        )
    head = set() if classes is None else head_names(folder, classes)
    absent, other = set(report["missing_keys"]), {row[0]: row for row in report["mismatched_keys"]}
    wrong = [f"{name} is missing" for name in sorted(absent - head)]
    wrong += [f"{name} is {list(there)}, config.json asks for {list(here)}"
              for name, there, here in (other[name] for name in sorted(other.keys() - head))]  # fmt: skip
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise UserError(
            f"{where}: {folder.weights} does not fit config.json: {'; '.join(wrong[:3])}{more}; allowed: the weights of "
            f"{folder.architecture} with this config, save for its head; fix: save both together with save_pretrained"
        )
    own = loaded.state_dict()
    same = classes is None or _same_classes(folder, classes)
    fresh = head if head & (absent | other.keys()) or not same else set()
    module.model.load_state_dict({name: tensor for name, tensor in own.items() if name not in fresh}, strict=False)
    line = f"{where}: {len(own) - len(fresh)} of {len(own)} tensors taken from {folder.weights}"
    if fresh:
        line += f"; new head for {len(classes or ())} classes: {', '.join(sorted(fresh))}"
    if unused := sorted(report["unexpected_keys"]):
        line += f"; not used: {', '.join(unused[:3])}{' ..' if len(unused) > 3 else ''}"
    return line


def head_names(folder: ModelFolder, classes: Sequence[str]) -> set[str]:
    """The weights whose shapes depend on the number of classes."""
    with torch.device("meta"):
        some, more = (
            model_class(folder)(make_config(folder, names)).state_dict() for names in (classes, [*classes, "another"])
        )
    return {name for name in some if some[name].shape != more[name].shape}


def _same_classes(folder: ModelFolder, classes: Sequence[str]) -> bool:
    """Whether the folder's head is for these classes. Names such as LABEL_3 are transformers' own and say nothing."""
    labels = folder.config.get("id2label")
    if not isinstance(labels, Mapping):
        return True  # the shapes have decided
    names = [str(labels.get(str(i))) for i in range(len(labels))]
    return names == list(classes) or names == [f"LABEL_{i}" for i in range(len(classes))]


def identity(folder: ModelFolder) -> dict[str, object]:
    """What a checkpoint and the job that resumes it have in common of the model: JSON values."""
    shapes = {name: value for name, value in folder.config.items() if name not in NOT_SHAPES and not DRAWN.search(name)}
    return {"model": folder.architecture} | {f"config.{name}": value for name, value in sorted(shapes.items())}


def write_folder(module: FolderModule, folder: ModelFolder, state: Mapping[str, torch.Tensor], target: Path) -> Path:
    """Writes the model to `target` as a folder that from_pretrained reads; returns it. `state` is the module's.

    Raises OSError. The files are written aside and then renamed; what an earlier job left of weights is removed.
    """
    aside = target / ".new"
    shutil.rmtree(aside, ignore_errors=True)
    copies: dict[object, torch.Tensor] = {}  # tied weights stay one tensor, which save_pretrained writes once
    own = {
        name.removeprefix("model."): copies.setdefault((tensor.data_ptr(), tensor.shape), tensor.detach().cpu())
        for name, tensor in state.items()
    }
    model: Any = module.model  # torch knows no more of it than that it is a module
    model.save_pretrained(aside, state_dict=own, max_shard_size=SHARD_SIZE)
    for file in Path(folder.path).iterdir():
        if BESIDE.fullmatch(file.name):
            shutil.copyfile(file, aside / file.name)
    for old in target.glob("model*.safetensors*"):
        if not (aside / old.name).exists():
            old.unlink()
    for file in aside.iterdir():
        file.replace(target / file.name)
    aside.rmdir()
    sync_folder(target)
    return target
