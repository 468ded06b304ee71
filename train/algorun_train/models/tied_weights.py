"""Tied weights: whether the files of a folder agree with its config about which matrices are one."""

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from algorun_train.common.errors import UserError

from .folder_classes import skeleton
from .folder_config import ModelFolder
from .folder_weights import TensorInFile, files_of, tensors_in_files
from .weight_files import INDEX, ONE_FILE

KEY = "tie_word_embeddings"
ROWS = 4096  # of two matrices that are compared at a time


def untied_as_the_files(folder: ModelFolder, model: Any) -> ModelFolder:
    """`folder`, with `tie_word_embeddings` false in its config if its files have two different matrices for one that is tied.
    `model` is the folder's model of transformers on the meta device.

    transformers leaves such matrices apart (`tie_weights` in its modeling_utils.py), and so does a job. If config.json ties
    further weights, which are equal in the files, the folder is refused: no config says what transformers makes of it.
    Raises UserError.
    """
    if folder.weights is None:
        return folder
    ties: dict[str, str] = model.all_tied_weights_keys
    apart = _different(ties, model, Path(folder.path), folder.weights)
    if not apart:
        return folder
    target, source = next(iter(apart.items()))
    where = (
        f"{folder.source}: {folder.path}: {target} and {source} differ in {folder.weights}, and config.json ties them"
    )
    fix = f"set {KEY} to false in config.json, or remove the matrix that is not the model's from the file"
    if len(apart) < len(ties):
        still = next(name for name in ties if name not in apart)
        raise UserError(
            f"{where} as it ties {still} and {ties[still]}; allowed: all tied weights equal, or all of them different; "
            f"fix: {fix}"
        )
    for config in _without_ties(folder.config):
        changed = replace(folder, config=config)
        if not skeleton(changed, None).all_tied_weights_keys:
            line = f"{where}; they train apart, as transformers loads them, and the written config.json has {KEY} false"
            return replace(changed, notes=(*folder.notes, line))
    raise UserError(f"{where}; allowed: equal matrices, or {KEY} false; fix: {fix}")


def _without_ties(config: Mapping[str, Any]) -> list[dict[str, Any]]:  # Any: values of config.json
    """Configs to try: without ties at the top, and without them in inner configs as well."""
    top = {**config, KEY: False}
    inner = {k: {**v, KEY: False} for k, v in config.items() if isinstance(v, dict) and k.endswith("_config")}
    return [top, {**top, **inner}]


def _different(ties: Mapping[str, str], model: Any, path: Path, weights: str) -> dict[str, str]:
    """Those of `ties` (target: source) of which the files have both, with different values. {} if the files cannot be read:
    whoever loads them says so. Any: a model of transformers."""
    try:
        names, rows = (_of_safetensors if weights in (INDEX, ONE_FILE) else _of_bin)(model, path, weights)
    except Exception:
        return {}
    return {
        target: source
        for target, source in ties.items()
        if target in names
        and source in names
        and names[target] == names[source]
        and not _equal(target, source, rows, names)
    }


Shapes = dict[str, list[int]]
Rows = Callable[[str, int], torch.Tensor]  # (name, the first row) -> up to ROWS rows of the tensor


def _equal(one: str, other: str, rows: Rows, shapes: Shapes) -> bool:
    firsts = range(0, shapes[one][0], ROWS)
    return all(torch.equal(rows(one, first).float(), rows(other, first).float()) for first in firsts)


def _of_safetensors(model: Any, path: Path, weights: str) -> tuple[Shapes, Rows]:
    from safetensors import safe_open

    found: dict[str, TensorInFile] = tensors_in_files(model, path, weights)
    opened = {file: safe_open(path / file, "pt") for file in {each.file for each in found.values()}}

    def rows(name: str, first: int) -> torch.Tensor:
        file: Any = opened[found[name].file]  # safetensors has no types
        return cast(torch.Tensor, file.get_slice(found[name].key)[first : first + ROWS])

    return {name: each.shape for name, each in found.items()}, rows


def _of_bin(model: Any, path: Path, weights: str) -> tuple[Shapes, Rows]:
    named = {name: tensor for name, (_, _, tensor) in _tensors_of_bin(model, path, weights).items()}
    return {name: list(tensor.shape) for name, tensor in named.items()}, lambda name, first: named[name][
        first : first + ROWS
    ]


def _tensors_of_bin(model: Any, path: Path, weights: str) -> dict[str, tuple[str, str, torch.Tensor]]:
    """File, own name and tensor, by the model's name. Any: as above."""
    prefix, own, found = f"{model.base_model_prefix}.", model.state_dict(), {}
    for file in files_of(path, weights):
        mapped = zipfile.is_zipfile(path / file)  # torch maps no files of its older format
        tensors: dict[str, torch.Tensor] = torch.load(path / file, map_location="cpu", weights_only=True, mmap=mapped)
        for key, tensor in tensors.items():
            found[key if key in own else prefix + key] = (file, key, tensor)
    return found


TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int8: "I8",
    torch.uint8: "U8",
}


def types_in_files(model: Any, path: Path, weights: str) -> dict[str, tuple[str, str, str]]:
    """File, own name and type of each tensor, by the model's name; the type is safetensors' word, or torch's for rare ones of .bin
    files. Raises what reading a damaged file raises. Any: a model of transformers."""
    if weights in (INDEX, ONE_FILE):
        return {name: (each.file, each.key, each.kind) for name, each in tensors_in_files(model, path, weights).items()}
    found = _tensors_of_bin(model, path, weights)
    return {
        name: (file, key, TYPES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch.")))
        for name, (file, key, tensor) in found.items()
    }
