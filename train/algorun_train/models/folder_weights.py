"""The weights of a Hugging Face folder, tensor by tensor: read from safetensors files, or drawn anew."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.common.json_text import loads
from algorun_train.parallel.shard.sharded_model import taken
from algorun_train.parallel.shard.split import OwnPiece

from .weight_files import INDEX, ONE_FILE, headers

LONGEST_HEADER = 100_000_000  # bytes; safetensors takes no longer one
SAMPLE = 64  # bytes of each tensor that a fingerprint counts: weights that were trained differ in them


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """Where the tensors of a model come from. `files` has for each name of the model (file, name in it); `fresh` are the
    weights that are drawn, `unused` the names in the files that the model has not."""

    files: dict[str, tuple[str, str]]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]


def plan_tensors(
    model: Any, path: Path, weights: str | None, head: Collection[str], keep_head: bool
) -> TensorPlan | None:
    """The plan for a model of transformers, from the headers of the files alone: no tensor is read.

    transformers knows older names and those of a model without a head. Tensors of `head` may be absent or have
    another shape; if one of them is, or not `keep_head`, all of them are drawn. None if transformers must load the model:
    other files, tensors that it converts, names that do not fit. Raises what safetensors raises for damaged files.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming

    if weights not in (INDEX, ONE_FILE):
        return None
    if any(not isinstance(each, WeightRenaming) for each in get_model_conversion_mapping(model)):
        return None
    own = model.state_dict()
    there = tensors_in_files(model, path, weights)
    tied = _tied(model)
    files: dict[str, tuple[str, str]] = {}
    absent: set[str] = set()
    for name, tensor in own.items():
        found = there.get(name)
        if found is not None and found.shape == list(tensor.shape):
            files[name] = (found.file, found.key)
        elif name in head:
            absent.add(name)
        elif found is not None or name not in tied:
            return None
    if any(name not in files and tied[name] not in files for name in tied):
        return None
    fresh = sorted(head) if head and (absent or not keep_head) else []
    taken = {name: place for name, place in files.items() if name not in fresh}
    return TensorPlan(taken, tuple(fresh), tuple(sorted(each.key for name, each in there.items() if name not in own)))


def _tied(model: nn.Module) -> dict[str, str]:
    """For each name of a weight that has an earlier name: the earlier one."""
    first: dict[int, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    return {name: first[id(p)] for name, p in named if first.setdefault(id(p), name) != name}


@dataclass(frozen=True, slots=True)
class TensorInFile:
    """A tensor of a safetensors file by its own name there, `key`; `kind` is safetensors' word for its type, such as F32."""

    file: str
    key: str
    shape: list[int]
    kind: str


def tensors_in_files(model: Any, path: Path, weights: str) -> dict[str, TensorInFile]:
    """What the files have, by the names that transformers gives it in `model`. A tensor that is in two files is the one of the
    later file, as transformers reads it. Raises what safetensors raises for damaged files."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    transforms = get_model_conversion_mapping(model)
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    own, found = model.state_dict(), {}
    for file, key, shape, kind in headers(path, files_of(path, weights)):
        name, _ = rename_source_key(key, renamings, converters, model.base_model_prefix, own)
        found[name] = TensorInFile(file, key, shape, kind)
    return found


def files_of(path: Path, weights: str) -> list[str]:
    """The files with the tensors: `weights`, or those that this index lists, in transformers' order."""
    if not weights.endswith(".index.json"):
        return [weights]
    index: Any = loads((path / weights).read_text())  # Any: weight_files.py has checked it
    return sorted(set(index["weight_map"].values()))


def fingerprint(path: Path, plan: TensorPlan) -> str:
    """What two hosts compare before each reads its own copy of the files: names, shapes, and the first bytes of each tensor.
    Empty if this host has no such files."""
    digest = hashlib.sha256()
    try:
        for file in sorted({file for file, _ in plan.files.values()}):
            with (path / file).open("rb") as opened:
                length = opened.read(8)
                header = opened.read(min(int.from_bytes(length, "little"), LONGEST_HEADER))
                digest.update(length + header)
                places: Any = loads(header)  # Any: whatever the file holds
                for place in places.values():
                    if "data_offsets" in place:
                        opened.seek(8 + len(header) + place["data_offsets"][0])
                        digest.update(opened.read(SAMPLE))
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError):
        return ""
    return digest.hexdigest()


def read_tensors(path: Path, plan: TensorPlan, pieces: Mapping[str, OwnPiece]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of the plan one after the other, of those in `pieces` only these."""
    from safetensors import safe_open

    with ExitStack() as stack:
        opened = {file: stack.enter_context(safe_open(path / file, "pt")) for file, _ in sorted(plan.files.values())}
        for name, (file, key) in plan.files.items():
            tensor = (
                taken(opened[file].get_slice(key), pieces[name]) if name in pieces else opened[file].get_tensor(key)
            )
            refuse_not_finite(f"{path / file}: {key}", tensor)
            yield name, tensor


def refuse_not_finite(where: str, tensor: torch.Tensor) -> None:
    """Raises UserError if a tensor has values that are no numbers: each loss would be NaN."""
    if not tensor.is_floating_point() or not tensor.numel():
        return
    low, high = torch.aminmax(tensor)
    if not torch.isfinite(low) or not torch.isfinite(high):
        count = int(tensor.numel() - torch.isfinite(tensor).sum())
        raise UserError(
            f"{where}: {count} of {tensor.numel()} values are NaN or infinite; allowed: finite weights; fix: take an earlier "
            "checkpoint of the model, from before its training diverged"
        )


def draw_tensors(
    skeleton: Any, units: Sequence[nn.Module], names: Collection[str], seed: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """Random weights, on the CPU, of those `names`, as transformers draws them; the same bits for everyone who calls this.

    `skeleton` is the model on the meta device; it is used up. One of its `units` at a time has memory. A tied weight comes
    once, under its first name.
    """
    torch.manual_seed(seed)
    known = {id(p): name for name, p in reversed(list(skeleton.named_parameters(remove_duplicate=False)))}
    wanted = {known[id(p)] for name, p in skeleton.named_parameters(remove_duplicate=False) if name in names}
    drawn: set[str] = set()
    for unit in (*units, skeleton):
        own = {id(p): known[id(p)] for p in unit.parameters() if known.get(id(p)) in wanted - drawn}
        if not own:
            continue
        made = {
            key: nn.Parameter(torch.zeros(p.shape, dtype=p.dtype)) for key, p in _unique(unit).items() if key in own
        }
        places = [
            (m, key, p) for m in unit.modules() for key, p in m._parameters.items() if p is not None and id(p) in made
        ]
        for module, key, old in places:
            setattr(module, key, made[id(old)])
        with torch.no_grad():
            initialise(unit, _owner(skeleton, unit))
        yield from ((name, made[key].data) for key, name in own.items())
        for module, key, old in places:
            setattr(module, key, old)
        drawn |= set(own.values())


def _unique(module: nn.Module) -> dict[int, nn.Parameter]:
    return {id(p): p for p in module.parameters()}


def initialise(module: nn.Module, owner: Any) -> None:
    """Gives weights and buffers that are not on the meta device their first values, as transformers does: children first."""
    from transformers import PreTrainedModel

    for child in module.children():
        initialise(child, child if isinstance(child, PreTrainedModel) else owner)
    owner._init_weights(module)


def _owner(model: nn.Module, unit: nn.Module) -> Any:
    """The innermost model of transformers around `unit`; it knows how to draw the unit's weights."""
    from transformers import PreTrainedModel

    around = [
        m for m in model.modules() if isinstance(m, PreTrainedModel) and any(each is unit for each in m.modules())
    ]
    return around[-1]
