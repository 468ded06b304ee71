"""Everything about a Hugging Face folder that can be known before the first step."""

import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from algorun_train.common.errors import UserError

from .causal_check import check_language_model
from .config_values import misspelt_keys
from .folder_classes import skeleton
from .folder_config import ModelFolder, read_folder
from .folder_files import refused
from .folder_weights import tensors_in_files
from .small_copy import count
from .tied_weights import untied_as_the_files
from .weight_files import INDEX, ONE_FILE

EXAMPLE = (
    256  # tokens at which unused weights are looked for: beyond it no family of transformers 5.24 uses more weights
)
QUANTISED = ("F8", "F4", "F6", "I8", "U8", "I4", "U4")  # beginnings of safetensors' words for types


def checked_folder(path: Path, source: str, context: int | None) -> ModelFolder:
    """The folder as a job trains it, read and checked on rank 0. `context` is --context, if it is given; None: by default.

    Raises UserError if the folder cannot be trained, or if transformers would make another model of it than a job.
    """
    folder = read_folder(path, source)
    where = f"{source}: {path}"
    notes = [f"{where}: config.json has {key}, which changes nothing; {meant} is not there: is it meant?"
             for key, meant in misspelt_keys(folder.config)]  # fmt: skip
    limit = folder.tokens.context if folder.tokens else None
    example = min(number for number in (context, limit, EXAMPLE) if number)
    model = skeleton(folder, None)
    folder = untied_as_the_files(replace(folder, example=example, notes=tuple(notes)), model)
    _refuse_quantised(folder, model)
    _refuse_unsaved(folder, model)
    unchecked = check_language_model(folder, count(model)) if folder.tokens else None
    return replace(folder, notes=(*folder.notes, unchecked)) if unchecked else folder


def _refuse_quantised(folder: ModelFolder, model: Any) -> None:  # Any: a model of transformers, which has no types
    """Raises UserError if a weight of the model has a quantised type in the files, where transformers would take the bare
    numbers for the weights."""
    if folder.weights not in (INDEX, ONE_FILE):
        return
    try:
        found = tensors_in_files(model, Path(folder.path), folder.weights)
    except Exception:  # whoever loads them names it
        return
    weights = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name, tensor in found.items():
        if tensor.kind.startswith(QUANTISED) and name in weights:
            raise UserError(
                f"{folder.source}: {folder.path}: {tensor.file}: {tensor.key} is {tensor.kind}, a quantised weight; allowed: "
                "F32, F16, BF16; fix: save the model without quantisation"
            )


def _refuse_unsaved(folder: ModelFolder, model: Any) -> None:  # Any: as above
    """Raises UserError if the configs cannot be written at the end of the job, or not be read again with the model."""
    from transformers import GenerationConfig

    where = f"{folder.source}: {folder.path}"
    with tempfile.TemporaryDirectory() as aside, refused(f"{where}: config.json cannot be saved again"):
        model.config.save_pretrained(aside)
        if model.can_generate():
            model.generation_config.save_pretrained(aside)
    if folder.tokens and (Path(folder.path) / "generation_config.json").exists():
        # transformers goes on without a file that it cannot read
        with contextlib.suppress(OSError), refused(f"{where}: generation_config.json is refused", (OSError,)):
            GenerationConfig.from_pretrained(folder.path, local_files_only=True)
