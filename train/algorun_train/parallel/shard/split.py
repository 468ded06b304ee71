"""How the ranks of a tensor group hold a weight that is split between them, and what a rank holds of a whole tensor. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Ranges = tuple[tuple[int, int], ...]  # [begin, end) of a dimension
Index = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """A weight of `shape` of which each of `ranks` ranks has its part of dimension `dim`, in the order of ranks.

    `blocks`: the dimension is that many matrices side by side, such as the gate and the inner weights of an MLP in one; each of
    them is split alone. If the ranks do not divide it, the last ranks have less, as `torch.chunk` cuts.
    """

    shape: tuple[int, ...]
    dim: int
    ranks: int
    blocks: int = 1

    def ranges(self, rank: int) -> Ranges:
        """What a rank has of dimension `dim`."""
        size = self.shape[self.dim]
        block = -(-size // self.blocks)
        found = []
        for begin in range(0, size, block):
            end = min(begin + block, size)
            part = -(-(end - begin) // self.ranks)
            first = min(begin + rank * part, end)
            found.append((first, min(first + part, end)))
        return tuple(found)

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """The shape of what a rank has."""
        held = sum(end - begin for begin, end in self.ranges(rank))
        return (*self.shape[: self.dim], held, *self.shape[self.dim + 1 :])


@dataclass(frozen=True, slots=True)
class TensorParts:
    """What is known of the weights of a model in parts, by their names in it: the `splits` of those that are split, and `partial`,
    those of which each rank computes one summand of the gradient."""

    splits: Mapping[str, Split]
    partial: frozenset[str]
    words: Split | None = None
    """which words of the logits a rank has; None: all"""

    def inside(self, prefix: str) -> TensorParts:
        """The same with longer names, of a model inside another module."""
        splits = {prefix + name: split for name, split in self.splits.items()}
        return TensorParts(splits, frozenset(prefix + name for name in self.partial), self.words)


def united(parts: Iterable[TensorParts]) -> TensorParts:
    """What is known of the weights of several modules, whose names differ."""
    splits: dict[str, Split] = {}
    partial: frozenset[str] = frozenset()
    for each in parts:
        splits |= each.splits
        partial |= each.partial
    return TensorParts(splits, partial)


@dataclass(frozen=True, slots=True)
class OwnPiece:
    """What a rank holds of a whole tensor: its part of a dimension if the tensor is `split`, then of that the `rows`. None: all."""

    split: Split | None
    rank: int
    rows: slice | None

    def indices(self) -> list[Index]:
        """The blocks of the whole tensor that make the piece, one after the other along `dim`."""
        if self.split is None:
            return [(self.rows or slice(None),)]
        ranges, dim = self.split.ranges(self.rank), self.split.dim
        if dim == 0:
            return [(slice(begin, end),) for begin, end in _within(ranges, self.rows)]
        before = (self.rows or slice(None), *(slice(None),) * (dim - 1))
        return [(*before, slice(begin, end)) for begin, end in ranges]

    @property
    def dim(self) -> int:
        """The dimension along which the blocks of `indices` lie."""
        return self.split.dim if self.split else 0

    @property
    def is_empty(self) -> bool:
        """Whether it holds no number."""
        if self.rows is not None and self.rows.start >= self.rows.stop:
            return True
        return self.split is not None and 0 in self.split.local_shape(self.rank)


def _within(ranges: Ranges, rows: slice | None) -> list[tuple[int, int]]:
    """The `rows` of what the ranges hold together, as ranges of the whole. One empty range if there are none."""
    if rows is None:
        return list(ranges)
    found, at = [], 0
    for begin, end in ranges:
        first, last = max(rows.start - at, 0), min(rows.stop - at, end - begin)
        if first < last:
            found.append((begin + first, begin + last))
        at += end - begin
    return found or [(0, 0)]
