"""State dicts with sharded data parallelism: of this rank's shares, and of the whole model.

A local state dict has this rank's rows of each tensor under the tensor's own name, and says under SHARES which they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from algorun_smdistributed.script_types import Result, StateDict
from algorun_train.common.errors import UserError
from algorun_train.parallel.shard.sharded_model import ShardMesh, gathered, own_share

from .sharded_whole import ShardedWhole, local
from .state_keys import PARTIAL, SHARES


class ShardedModelState:
    """Of the model. On all ranks of a replica, but for `local`."""

    def __init__(self, sharded: ShardedWhole) -> None:
        self._mesh, self._module = sharded.mesh, sharded.roots[0]
        self._opened = False
        self._module.register_state_dict_pre_hook(self._refuse)

    def whole(self, first_only: bool = False) -> StateDict:
        """All tensors in the host's memory, one gathered at a time. `first_only`: on the first rank, {} on the others."""
        found: dict[int, torch.Tensor | None] = {}  # a tied weight is gathered once
        named = self._tensors()
        for tensor in named.values():
            if id(tensor) not in found:
                found[id(tensor)] = whole(tensor, self._mesh, first_only)
        return {name: found[id(tensor)] for name, tensor in named.items() if found[id(tensor)] is not None}

    def local(self) -> StateDict:
        """This rank's part."""
        named = self._tensors()
        shares = [name for name, tensor in named.items() if isinstance(tensor, DTensor)]
        rows = {name: local(tensor).detach() for name, tensor in named.items()}
        return rows | {PARTIAL: True, SHARES: _described(self._mesh, shares)}

    def load(self, state: Mapping[str, torch.Tensor], strict: bool = True) -> Result:
        """Takes a whole state dict, or what `local` gave on this rank of as many."""
        given = {name: value for name, value in state.items() if name not in (PARTIAL, SHARES)}
        shares = _own(self._mesh, state, "model.load_state_dict")
        named = self._tensors()
        taken = {
            name: as_share(value, named[name])
            if name in shares
            else own_share(value, named[name])
            if name in named
            else value
            for name, value in given.items()
        }
        return self._module.load_state_dict(taken, strict=strict)

    def onto_cpu(self) -> None:
        raise UserError(
            "model.cpu: each rank holds shares of the weights; allowed: without sharded data parallelism; "
            "fix: model.state_dict() on all ranks"
        )

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and saved buffers themselves."""
        with self._open():
            return dict(self._module.state_dict(keep_vars=True))

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        self._opened = True
        try:
            yield
        finally:
            self._opened = False

    def _refuse(self, module: nn.Module, *_: object) -> None:
        if not self._opened:
            raise UserError(
                "model.module.state_dict(): the module holds this rank's shares of the weights only; fix: "
                "model.state_dict() on all ranks, or model.local_state_dict()"
            )


def whole_optimizer_state(state: StateDict, mesh: ShardMesh, first_only: bool = False) -> StateDict:
    """An optimizer's state with whole tensors, in the host's memory. On all ranks of a replica."""
    values = {
        number: {key: whole(value, mesh, first_only) for key, value in each.items()}
        for number, each in state["state"].items()
    }
    return state | {"state": {} if first_only and mesh.index else values}


def local_optimizer_state(state: StateDict, mesh: ShardMesh) -> StateDict:
    """This rank's part of an optimizer's state."""
    shares = {
        number: [key for key, value in each.items() if isinstance(value, DTensor)]
        for number, each in state["state"].items()
    }
    rows = {
        number: {key: local(value) if isinstance(value, DTensor) else value for key, value in each.items()}
        for number, each in state["state"].items()
    }
    return state | {"state": rows, PARTIAL: True, SHARES: _described(mesh, shares)}


def loaded_optimizer_state(state: StateDict, parameters: Sequence[torch.Tensor], mesh: ShardMesh) -> StateDict:
    """What torch's optimizer over `parameters` takes: of a whole state, or of this rank's part."""
    shares = _own(mesh, state, "optimizer.load_state_dict")

    def taken(number: int, key: str, value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        of_share = number in shares and key in cast(Mapping[int, Sequence[str]], shares)[number]
        return as_share(value, parameters[number]) if of_share else own_share(value, parameters[number])

    values = {
        number: {key: taken(number, key, value) for key, value in each.items()}
        for number, each in state["state"].items()
    }
    return {"state": values, "param_groups": state["param_groups"]}


def merged_shares(states: Sequence[StateDict]) -> StateDict:
    """The whole state of the local ones of all ranks of a replica, in their order; of a model, or of an optimizer."""
    first, rest = states[0], {PARTIAL, SHARES}
    names = first[SHARES]["of"]
    if "param_groups" not in first:
        joined = {name: torch.cat([state[name] for state in states]) for name in names}
        return {key: joined.get(key, value) for key, value in first.items() if key not in rest}
    values = {
        number: {
            key: torch.cat([state["state"][number][key] for state in states]) if key in names[number] else value
            for key, value in each.items()
        }
        for number, each in first["state"].items()
    }
    return {key: value for key, value in first.items() if key not in rest} | {"state": values}


def whole(value: object, mesh: ShardMesh, first_only: bool = False) -> Result:
    """A share's whole tensor in the host's memory; anything else as it is. On all ranks of a replica."""
    if not isinstance(value, torch.Tensor):
        return value
    if first_only:
        return gathered(value, 0, mesh)
    return value.full_tensor().detach().cpu() if isinstance(value, DTensor) else value.detach().cpu()


def as_share(rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This rank's rows as a share that is laid out as `like`. UserError if they are not as many."""
    if not isinstance(like, DTensor) or like.to_local().shape != rows.shape:
        raise UserError(
            f"load_state_dict: rows {list(rows.shape)} of a share; allowed: {list(local(like).shape)}; fix: load the "
            "state of the same model"
        )
    moved = rows.to(like.device, copy=True)
    return DTensor.from_local(
        moved, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def _described(mesh: ShardMesh, of: object) -> dict[str, object]:
    return {"number": mesh.index, "count": mesh.shards, "of": of}


def _own(mesh: ShardMesh, state: Mapping[str, object], what: str) -> Mapping[object, object] | Sequence[str]:
    """What in `state` is this rank's share. UserError for another rank's."""
    if not state.get(PARTIAL, False):
        return ()
    described = state.get(SHARES)
    if not isinstance(described, Mapping) or (described["number"], described["count"]) != (mesh.index, mesh.shards):
        raise UserError(
            f"{what}: a part that is not share {mesh.index} of {mesh.shards}; allowed: this rank's own local_state_dict(), or "
            "a whole state dict; fix: smp.resume_from_checkpoint, which puts parts together"
        )
    return cast("Mapping[object, object] | Sequence[str]", described["of"])
