"""A traced step cut at positions: what each position computes, and which tensors cross between ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from algorun_train.common.errors import UserError

from . import positions
from .pieces import piece
from .positions import Owners, Positions, rank_of
from .tracing import TracedStep

Operation = Any  # TensorFlow's objects have no types for mypy
Tensor = Any
Key = str
"""a tensor's name in the graph"""
INPUT = -1
"""the position of the step's arguments; they are those of the first rank"""


@dataclass(frozen=True, slots=True)
class GraphPiece:
    """What one position computes: `function(*feeds)` gives the fetches."""

    position: int
    function: Any
    feeds: tuple[Key, ...]
    fetches: tuple[Key, ...]
    operations: int


@dataclass(frozen=True, slots=True)
class GraphCut:
    """A step in pieces. The same on all ranks, but for `pieces` and `everywhere`: a rank builds its own."""

    stages: int
    pieces: Mapping[int, GraphPiece]
    """by position; a position that computes nothing has none"""
    everywhere: GraphPiece | None
    """what every rank computes after the passes of a microbatch: updates of the script's metrics"""
    messages: Mapping[tuple[int, int], tuple[Key, ...]]
    """(position, receiving rank) -> the tensors that the position sends there"""
    boundary_bytes: tuple[int, ...]
    """for each stage but the first: bytes that enter its forward pass"""
    has_backward: bool
    """whether the step computes gradients"""


def cut(
    traced: TracedStep,
    results: Sequence[tuple[Tensor, int | None]],
    stage_of_layer: Mapping[int, int],
    owners: Owners,
    stages: int,
    ranks: Sequence[int],
    trial: bool = False,
) -> GraphCut:
    """The step in pieces for these ranks of a pipeline.

    `results`: tensors that the step returns, each with the rank that needs it; None: all ranks do. `trial`: all pieces run
    on one rank, which has all variables. Raises UserError for a step that cannot be cut so.
    """
    found = positions.find(traced, [tensor for tensor, _ in results], stage_of_layer, owners, stages, trial)
    source = _Source(traced, found, owners)
    for tensor, only in results:
        if only is None and source.position(tensor) >= stages and not trial:
            raise from_gradients(tensor)
    feeds = {position: source.feeds(source.operations(position)) for position in range(2 * stages)}
    tail_feeds = source.feeds(found.everywhere, tail=True)
    needs: dict[tuple[int, int], dict[Key, Tensor]] = {}  # (position, receiving rank) -> tensors

    def need(tensor: Tensor, rank: int) -> None:
        position = source.position(tensor)
        if rank_of(max(position, 0), stages) != rank:
            needs.setdefault((position, rank), {})[tensor.name] = tensor

    for position, tensors in feeds.items():
        for tensor in tensors:
            need(tensor, rank_of(position, stages))
    for rank in range(stages):
        for tensor in tail_feeds:
            need(tensor, rank)
        for tensor, only in results:
            if only in (None, rank):
                need(tensor, rank)
    for crossing in needs.values():
        for tensor in crossing.values():
            _check_crossing(tensor)
    wanted = {tensor.name for tensors in (*feeds.values(), tail_feeds) for tensor in tensors}
    wanted |= {tensor.name for tensor, _ in results}
    produced: dict[int, dict[Key, Tensor]] = {}
    for name, tensor in source.produced(wanted, [tensor for tensor, _ in results]).items():
        produced.setdefault(source.position(tensor), {})[name] = tensor
    pieces = {}
    for position in range(2 * stages):
        mine, fetches = source.operations(position), tuple(produced.get(position, {}).values())
        effects = [op for op in found.effects if found.of.get(op) == position]
        if rank_of(position, stages) in ranks and (fetches or effects):
            name = f"{'forward' if position < stages else 'backward'}_{rank_of(position, stages)}"
            function = piece(traced, name, mine, feeds[position], fetches, effects)
            pieces[position] = GraphPiece(position, function, _names(feeds[position]), _names(fetches), len(mine))
    everywhere = None
    if found.outside:
        function = piece(traced, "everywhere", found.everywhere, tail_feeds, (), found.outside)
        everywhere = GraphPiece(2 * stages, function, _names(tail_feeds), (), len(found.everywhere))
    order = {
        tensor.name: number
        for number, tensor in enumerate(t for op in traced.graph.get_operations() for t in op.outputs)
    }
    return GraphCut(
        stages,
        pieces,
        everywhere,
        {way: tuple(sorted(tensors, key=order.__getitem__)) for way, tensors in needs.items()},
        tuple(
            sum(
                _bytes(t)
                for (position, rank), tensors in needs.items()
                if rank == stage and position < stage
                for t in tensors.values()
            )
            for stage in range(1, stages)
        ),
        any(position >= stages for position in found.of.values()),
    )


class _Source:
    """The graph as pieces see it."""

    def __init__(self, traced: TracedStep, found: Positions, owners: Owners) -> None:
        self._found, self._owners = found, owners
        self._inputs = {tensor.name for tensor in traced.inputs}
        self._by_position: dict[int, list[Operation]] = {}
        self._tensors = {tensor.name: tensor for op in traced.graph.get_operations() for tensor in op.outputs}
        for op in traced.graph.get_operations():
            if op in found.of:
                self._by_position.setdefault(found.of[op], []).append(op)

    def operations(self, position: int) -> list[Operation]:
        """Those of a position, in the graph's order."""
        return self._by_position.get(position, [])

    def position(self, tensor: Tensor) -> int:
        """Where a tensor is computed. A constant that a step returns is computed in the last forward pass."""
        if tensor.name in self._inputs:
            return INPUT
        return self._found.of.get(tensor.op, self._found.stages - 1)

    def feeds(self, operations: Sequence[Operation], tail: bool = False) -> tuple[Tensor, ...]:
        """The tensors that a piece with these operations gets from elsewhere."""
        mine, found = set(operations), dict[Key, Tensor]()
        for op in operations:
            for tensor in op.inputs:
                if self._owners.is_captured(tensor) or tensor.op in mine or tensor.op in self._found.free:
                    continue
                if tail and tensor.name not in self._inputs and tensor.op not in self._found.of:
                    raise UserError(
                        f"smp.step: operation {op.name} outside the model follows from one inside that nothing else needs "
                        f"({tensor.op.name}); allowed: metrics of what the model returns; fix: return it from the model's call"
                    )
                found[tensor.name] = tensor
        return tuple(found.values())

    def produced(self, wanted: set[Key], results: Sequence[Tensor]) -> dict[Key, Tensor]:
        """The tensors that some position has to give to another one, or to the script."""
        names = {tensor.name for tensor in results}
        return {
            name: self._tensors[name]
            for name in wanted
            if name not in self._inputs and (self._tensors[name].op in self._found.of or name in names)
        }


def from_gradients(tensor: Tensor) -> UserError:
    """The error about a result that other ranks would need in another form."""
    return UserError(
        f"smp.step: the function returns {tensor.op.name}, which is computed from gradients; allowed: what "
        "optimizer.get_gradients returns, as it is; fix: change gradients outside of the function, after g.accumulate()"
    )


def _names(tensors: Sequence[Tensor]) -> tuple[Key, ...]:
    return tuple(tensor.name for tensor in tensors)


def _check_crossing(tensor: Tensor) -> None:
    if tensor.dtype.name in ("resource", "variant"):
        raise UserError(
            f"smp.step: {tensor.op.name} gives a {tensor.dtype.name}, which cannot be sent to another rank; allowed: tensors of "
            "numbers or text between layers; fix: keep what makes it and what uses it in one layer"
        )


def _bytes(tensor: Tensor) -> int:
    count = tensor.shape.num_elements()
    return int(count or 0) * int(tensor.dtype.size)
