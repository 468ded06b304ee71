"""The first weights of a model of a Hugging Face folder of which each rank has shares or stages: no rank needs more memory than
those and one tensor."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from algorun_train.common.errors import UserError
from algorun_train.models import folder_model
from algorun_train.models.folder_config import ModelFolder
from algorun_train.models.folder_files import refused
from algorun_train.models.folder_weights import TensorPlan, fingerprint, read_tensors
from algorun_train.parallel.shard.sharded_model import Splits, piece_of, set_own, taken, whole_shape
from algorun_train.ranks.communicator import LONG_WORK, Communicator


def fill_shares(
    model: Mapping[str, torch.Tensor],
    folder: ModelFolder,
    classes: Sequence[str] | None,
    seed: int,
    comm: Communicator,
    own: Mapping[str, torch.Tensor] | None = None,
    splits: Splits | None = None,
) -> str:
    """Fills each rank's shares; returns a line for the log. Call it on all ranks. Raises UserError, the same on all ranks.

    `model` has the weights and saved buffers by their names in transformers' model. `own` are those that this rank has, by the
    same names; None: all of `model`, which else only says names and shapes. `splits`: those that ranks of a tensor group share.
    If every host has the folder with the same weights, each rank reads its own share of each tensor. Else rank 0 reads one
    tensor after the other and sends it to all. Weights that are drawn are drawn by every rank, one unit at a time.
    """
    on_leader: list[folder_model.FirstWeights] = []

    def find() -> tuple[dict[str, tuple[str, str]], tuple[str, ...], bool, str]:
        on_leader.append(folder_model.first_weights(folder, classes))
        found = on_leader[0]
        return found.plan.files, found.plan.fresh, bool(found.loaded), found.line

    files, fresh, loaded, line = comm.from_leader(find, LONG_WORK)
    first = on_leader[0] if on_leader else folder_model.FirstWeights(TensorPlan(files, fresh, ()), {}, line)
    own = model if own is None else own
    with torch.no_grad():
        path = Path(folder.path)
        copies = [""] if loaded else comm.gather(fingerprint(path, first.plan))
        if files and copies[0] and len(set(copies)) == 1:
            comm.on_all(lambda: _read_own(path, first.plan, own, f"{folder.source}: {path}", splits))
        elif files:
            _receive(first, folder, model, own, comm, splits)
        for name, tensor in folder_model.drawn_tensors(first, folder, classes, seed):
            _set(own, name, tensor, splits)
            del tensor  # before the next one is drawn
    return line


def _set(own: Mapping[str, torch.Tensor], name: str, whole: torch.Tensor, splits: Splits | None) -> None:
    """Overwrites what this rank has of a weight."""
    if name in own:
        set_own(own[name], taken(whole, piece_of(name, own[name], splits)))


def _read_own(path: Path, plan: TensorPlan, own: Mapping[str, torch.Tensor], where: str, splits: Splits | None) -> None:
    """Reads this rank's share of each tensor that it has."""
    held = {name: piece for name in plan.files if name in own and (piece := piece_of(name, own[name], splits))}
    without = {name for name, piece in held.items() if piece.is_empty}
    mine = {name: place for name, place in plan.files.items() if name in own and name not in without}
    with refused(f"{where}: its weights cannot be read"):
        for name, tensor in read_tensors(path, TensorPlan(mine, (), ()), held):
            set_own(own[name], tensor)
            del tensor  # before the next one is read


def _receive(
    first: folder_model.FirstWeights,
    folder: ModelFolder,
    model: Mapping[str, torch.Tensor],
    own: Mapping[str, torch.Tensor],
    comm: Communicator,
    splits: Splits | None,
) -> None:
    """Rank 0 sends each tensor of `model`, and every rank keeps what it has of it. Raises UserError, on all ranks, if rank 0
    could not read all of them."""
    tensors = folder_model.taken_tensors(first, folder) if comm.is_leader else None
    failed: list[UserError] = []
    # One buffer for all of them: gloo holds a tensor a little longer than the call that sends it.
    shapes = {name: whole_shape(name, model[name], splits) for name in first.plan.files}
    sizes = [shape.numel() * model[name].element_size() for name, shape in shapes.items()]
    buffer = torch.empty(max(sizes), dtype=torch.uint8)
    for (name, shape), size in zip(shapes.items(), sizes, strict=True):
        flat = buffer[:size]
        whole = flat.view(model[name].dtype).view(shape)
        if tensors and not failed:
            try:
                with refused(f"{folder.source}: {folder.path}: its weights cannot be read"):
                    whole.copy_(next(tensors)[1])
            except UserError as error:  # the other ranks wait for this tensor
                failed.append(error)
        comm.broadcast(flat, 0)
        _set(own, name, whole, splits)

    def raise_failed() -> None:
        if failed:
            raise failed[0]

    comm.from_leader(raise_failed)
