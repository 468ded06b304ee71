"""Which files of a Hugging Face folder have the weights: those that from_pretrained reads, if they are weights at all."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from algorun_train.common.errors import UserError

from .folder_files import Json, read_json

ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
WEIGHTS = (ONE_FILE, INDEX, "pytorch_model.bin", "pytorch_model.bin.index.json")  # transformers takes the first of them
ADAPTER = "adapter_config.json"
# Weights that nothing here reads. Without this list a folder of them would start from random weights.
OTHERS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".ggml", ".npz", ".onnx")
# What comes in place of a file, by its first bytes.
STAND_INS = {
    b"version https://git-lfs": ("a pointer of Git LFS, not the file itself", "run git lfs pull in the folder"),
    b"<!DOCTYPE": ("a web page", "download the file again"),
    b"<html": ("a web page", "download the file again"),
}


def find_weights(where: str, path: Path, config: Json) -> str | None:
    """The name of the file with the weights, or with their index; None: the folder has none. `where` is for messages.

    Raises UserError if there is something that looks like weights and cannot be read here.
    """
    if name := config.get("transformers_weights"):
        raise UserError(
            f"{where}: config.json has transformers_weights {name!r}; allowed: {', '.join(WEIGHTS)}; "
            f"fix: rename the file to {ONE_FILE}, and remove the key"
        )
    for name in WEIGHTS:
        if os.path.lexists(path / name):
            for file in weight_files(where, path, name):
                _refuse_stand_in(where, path / file)
            return name
    files = sorted(entry for entry in path.iterdir() if entry.is_file())
    if others := [file.name for file in files if file.suffix in OTHERS]:
        raise UserError(
            f"{where}: {others[0]} is not a name for a model's weights; allowed: {', '.join(WEIGHTS)}, or no weights; "
            "fix: save the model with save_pretrained, or remove the file to start from random weights"
        )
    if below := sorted(f"{file.parent.name}/{file.name}" for name in WEIGHTS for file in path.glob(f"*/{name}")):
        raise UserError(
            f"{where}: no weights, but {below[0]}; allowed: the weights beside config.json, or none at all; "
            f"fix: give the folder {path / below[0].partition('/')[0]}, or move its weights up"
        )
    return None


def beside(path: Path, weights: str | None) -> Collection[str]:
    """Files of weights that are there too, and that transformers does not read."""
    return [name for name in WEIGHTS if weights and name != weights and (path / name).exists()]


def weight_files(where: str, path: Path, weights: str) -> list[str]:
    """The files that have the tensors: `weights`, or those that it lists. Raises UserError if one is not there."""
    files = [weights]
    _refuse_missing(where, path, weights, "")
    if weights.endswith(".index.json"):
        _refuse_stand_in(where, path / weights)
        listed = read_json(where, path / weights, "an index").get("weight_map")
        if not isinstance(listed, dict) or not listed or not all(isinstance(file, str) for file in listed.values()):
            raise UserError(
                f"{where}: {weights} has no weight_map; allowed: tensors and their files; fix: save the model again"
            )
        files = sorted(set(listed.values()))
    for file in files:
        if Path(file).name != file:
            raise UserError(
                f"{where}: {weights} lists {file!r}; allowed: files beside it; fix: move the file into the folder, and "
                "list its name only"
            )
        _refuse_missing(where, path, file, f", and {weights} lists it" if file != weights else "")
    return files


def refuse_adapter(where: str, path: Path) -> None:
    """Raises UserError if the folder has an adapter. transformers adds one that lies beside a whole model."""
    if (path / ADAPTER).exists():
        raise UserError(
            f"{where}: {ADAPTER}: the folder has an adapter of peft; allowed: a whole model; fix: add the adapter to its "
            "model (PeftModel.from_pretrained(..).merge_and_unload().save_pretrained(..)), or remove it to train the model "
            "without it"
        )


def refuse_pointers(where: str, path: Path, names: Collection[str]) -> None:
    """Raises UserError if one of these files is there but only stands for the real one."""
    for name in names:
        if (path / name).is_file():
            _refuse_stand_in(where, path / name)


def _refuse_missing(where: str, path: Path, name: str, why: str) -> None:
    if (path / name).is_file():
        return
    kind = "a folder" if (path / name).is_dir() else "a link to nothing" if (path / name).is_symlink() else "not there"
    raise UserError(
        f"{where}: {name} is {kind}{why}; allowed: complete weights, or none at all; fix: copy the model again, with all "
        "of its files"
    )


def _refuse_stand_in(where: str, file: Path) -> None:
    with file.open("rb") as opened:
        start = opened.read(max(map(len, STAND_INS)))
    found = next(((what, fix) for first, (what, fix) in STAND_INS.items() if start.startswith(first)), None)
    if not start:
        found = "empty (0 bytes)", "copy the file again"
    if found:
        raise UserError(f"{where}: {file.name} is {found[0]}; allowed: what save_pretrained writes; fix: {found[1]}")


def headers(path: Path, files: Collection[str]) -> Iterator[tuple[str, str, list[int], str]]:
    """(file, name, shape, type) of all tensors of safetensors files; a type is safetensors' own word, such as F32."""
    from safetensors import safe_open

    for file in files:
        with safe_open(path / file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (not a mapping)
                tensor = opened.get_slice(name)
                yield file, name, list(tensor.get_shape()), str(tensor.get_dtype())
