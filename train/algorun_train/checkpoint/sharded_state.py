"""The state of a sharded model as whole tensors by name, spread over the ranks of a replica."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from algorun_train.loop.progress import LoopProgress
from algorun_train.parallel.shard.sharded_model import ShardMesh, Splits, gathered, whole_shape
from algorun_train.ranks.host_copies import HostCopies

from .optimizer_state import NamedState, named_state
from .shard_saver import MODEL, OPTIMIZER
from .state_file import JobRecord, State


@dataclass(frozen=True, slots=True)
class OwnedState:
    """Whole tensors that this rank writes: those of the names that it owns, in the host's memory."""

    model: dict[str, torch.Tensor]
    optimizer: NamedState


def owners(sizes: Sequence[tuple[str, int]], shards: int) -> dict[str, int]:
    """For each name the share that owns it, so that all own about as many bytes; `sizes` are (name, bytes)."""
    held, chosen = [0] * shards, {}
    for name, size in sorted(sizes, key=lambda row: (-row[1], row[0])):
        least = held.index(min(held))
        chosen[name] = least
        held[least] += size
    return chosen


def owned_state(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    mesh: ShardMesh,
    host: HostCopies,
    without: Collection[str] = (),
    splits: Splits | None = None,
) -> OwnedState:
    """Gathers weights and optimizer state tensor by tensor, each on its owner. Call it on all ranks of a replica. The tensors
    are undefined until `host` has waited.

    A name and the optimizer's state of it have the same owner. So a rank needs memory for about its share, in the host's
    memory, and for one whole tensor. `without`: names that another shard of the checkpoint holds. `optimizer` may have
    parameters of other modules too. `splits`: the weights that ranks of a tensor group share.
    """
    ways = splits.by_name if splits else {}
    weights = {name: tensor for name, tensor in model.state_dict().items() if name not in without}
    first = {id(parameter): name for name, parameter in reversed(list(model.named_parameters(remove_duplicate=False)))}
    by_name = dict(model.named_parameters(remove_duplicate=False))
    tied = {
        name: first[id(parameter)]
        for name, parameter in by_name.items()
        if first[id(parameter)] != name and name not in without
    }
    sizes = [
        (name, whole_shape(name, tensor, splits).numel() * tensor.element_size())
        for name, tensor in weights.items()
        if name not in tied
    ]
    owner = owners(sizes, mesh.members)
    state = OwnedState({}, {})
    for name, _ in sizes:
        whole = gathered(weights[name], owner[name], mesh, host, ways.get(name))
        if whole is not None:
            state.model[name] = whole
    state.model.update({name: state.model[kept] for name, kept in tied.items() if kept in state.model})
    trained = ((name, parameter) for name, parameter in model.named_parameters() if name not in without)
    for name, values in named_state(optimizer, trained).items():
        for key, value in values.items():
            held: object = value
            if isinstance(value, torch.Tensor):  # a step count has no dimension, and is whole on every rank
                held = gathered(value, owner[name], mesh, host, ways.get(name) if value.dim() else None)
            if held is not None and owner[name] == mesh.member:
                state.optimizer.setdefault(name, {})[key] = held
    return state


def sharded_state(
    record: JobRecord,
    progress: LoopProgress,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    mesh: ShardMesh,
    host: HostCopies,
    without: Collection[str] = (),
    splits: Splits | None = None,
) -> State:
    """The state of one shard of a checkpoint: the whole tensors that this rank owns. Call it on all ranks of a replica. The
    tensors are undefined until `host` has waited."""
    return shard_of(record, progress, owned_state(model, optimizer, mesh, host, without, splits))


def shard_of(record: JobRecord, progress: LoopProgress, owned: OwnedState) -> State:
    """The state of one shard of a checkpoint: what `owned_state` returned."""
    return {**record.state(progress), MODEL: owned.model, OPTIMIZER: owned.optimizer}
