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
from .small_copy import count
from .tied_weights import types_in_files, untied_as_the_files

EXAMPLE = (
    256  # tokens at which unused weights are looked for: beyond it no family of transformers 5.24 uses more weights
)
FLOATS = ("F32", "F16", "BF16", "F64")  # safetensors' words for the types of weights
QUANTISED = ("F8", "F4", "F6_", "I8", "U8", "I4", "U4")  # beginnings of others


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
    _refuse_other_types(folder, model)
    _refuse_unsaved(folder, model)
    unchecked = check_language_model(folder, count(model)) if folder.tokens else None
    return replace(folder, notes=(*folder.notes, unchecked)) if unchecked else folder


def _refuse_other_types(folder: ModelFolder, model: Any) -> None:  # Any: a model of transformers, which has no types
    """Raises UserError if a weight of the model has another type in the files than floating-point numbers: transformers would take
    the bare numbers of a quantised weight, or the real parts of complex ones, for the weights."""
    if folder.weights is None:
        return
    try:
        found = types_in_files(model, Path(folder.path), folder.weights)
    except Exception:  # whoever loads them names it
        return
    weights = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name, (file, key, kind) in found.items():
        if kind not in FLOATS and name in weights:
            what = "a quantised weight" if kind.startswith(QUANTISED) else "no floating-point number"
            raise UserError(
                f"{folder.source}: {folder.path}: {file}: {key} is {kind}, {what}; allowed: {', '.join(FLOATS)}; "
                f"fix: {'save the model without quantisation' if what.startswith('a ') else 'save the model with save_pretrained'}"
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
