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
from algorun_train.parallel.shard.sharded_model import own_rows, set_own
from algorun_train.ranks.communicator import LONG_WORK, Communicator


def fill_shares(
    model: Mapping[str, torch.Tensor],
    folder: ModelFolder,
    classes: Sequence[str] | None,
    seed: int,
    comm: Communicator,
    own: Mapping[str, torch.Tensor] | None = None,
) -> str:
    """Fills each rank's shares; returns a line for the log. Call it on all ranks. Raises UserError, the same on all ranks.

    `model` has the weights and saved buffers by their names in transformers' model. `own` are those that this rank has, by the
    same names; None: all of `model`, which else only says names and shapes.
    If every host has the folder with the same weights, each rank reads its own rows of each tensor. Else rank 0 reads one
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
            comm.on_all(lambda: _read_own(path, first.plan, own, f"{folder.source}: {path}"))
        elif files:
            _receive(first, folder, model, own, comm)
        for name, tensor in folder_model.drawn_tensors(first, folder, classes, seed):
            _set(own, name, tensor)
            del tensor  # before the next one is drawn
    return line


def _set(own: Mapping[str, torch.Tensor], name: str, whole: torch.Tensor) -> None:
    """Overwrites what this rank has of a weight."""
    if name in own:
        rows = own_rows(own[name])
        set_own(own[name], whole if rows is None else whole[rows])


def _read_own(path: Path, plan: TensorPlan, own: Mapping[str, torch.Tensor], where: str) -> None:
    """Reads this rank's rows of each tensor that it has."""
    rows = {name: held for name in plan.files if name in own and (held := own_rows(own[name])) is not None}
    without = {name for name, held in rows.items() if held.start == held.stop}
    mine = {name: place for name, place in plan.files.items() if name in own and name not in without}
    with refused(f"{where}: its weights cannot be read"):
        for name, tensor in read_tensors(path, TensorPlan(mine, (), ()), rows):
            set_own(own[name], tensor)
            del tensor  # before the next one is read


def _receive(
    first: folder_model.FirstWeights,
    folder: ModelFolder,
    model: Mapping[str, torch.Tensor],
    own: Mapping[str, torch.Tensor],
    comm: Communicator,
) -> None:
    """Rank 0 sends each tensor of `model`, and every rank keeps what it has of it. Raises UserError, on all ranks, if rank 0
    could not read all of them."""
    tensors = folder_model.taken_tensors(first, folder) if comm.is_leader else None
    failed: list[UserError] = []
    # One buffer for all of them: gloo holds a tensor a little longer than the call that sends it.
    sizes = [model[name].numel() * model[name].element_size() for name in first.plan.files]
    buffer = torch.empty(max(sizes), dtype=torch.uint8)
    for name, size in zip(first.plan.files, sizes, strict=True):
        like, flat = model[name], buffer[:size]
        whole = flat.view(like.dtype).view(like.shape)
        if tensors and not failed:
            try:
                with refused(f"{folder.source}: {folder.path}: its weights cannot be read"):
                    whole.copy_(next(tensors)[1])
            except UserError as error:  # the other ranks wait for this tensor
                failed.append(error)
        comm.broadcast(flat, 0)
        _set(own, name, whole)

    def raise_failed() -> None:
        if failed:
            raise failed[0]

    comm.from_leader(raise_failed)
