"""Bytes that a rank really needs in a step, measured where there is no counter of a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

from algorun_train.parallel.shard.sharded_model import local

from .pipeline import Pipeline

T = TypeVar("T")


class _Saved:
    """A tensor saved by autograd; it dies when autograd drops it."""

    __slots__ = ("live", "tensor")

    def __init__(self, tensor: torch.Tensor, live: SavedBytes) -> None:
        self.tensor, self.live = tensor, live

    def __del__(self) -> None:
        self.live.dropped(self.tensor)


class SavedBytes:
    """Counts the bytes that autograd saves within the `with` statement: each storage once, however many views are saved.

    Storages of the tensors `apart` (weights and received inputs, which are counted elsewhere) do not count.
    """

    def __init__(self, apart: Iterable[torch.Tensor] = ()) -> None:
        self._apart = {_storage(tensor).data_ptr() for tensor in apart}
        self._users: Counter[int] = Counter()
        self.now = self.peak = 0
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def __enter__(self) -> SavedBytes:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: torch.Tensor) -> _Saved:
        storage = _storage(tensor)
        place = storage.data_ptr()
        if place not in self._apart:
            if not self._users[place]:
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
            self._users[place] += 1
        return _Saved(tensor.detach(), self)

    def _unpack(self, saved: object) -> torch.Tensor:
        assert isinstance(saved, _Saved)
        return saved.tensor

    def dropped(self, tensor: torch.Tensor) -> None:
        """Autograd needs this tensor no more."""
        storage = _storage(tensor)
        place = storage.data_ptr()
        if place not in self._apart:
            self._users[place] -= 1
            if not self._users[place]:
                del self._users[place]
                self.now -= storage.nbytes()


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    """The storage of this rank's part, if ranks share the tensor: the whole tensor has none."""
    return local(tensor).untyped_storage()


def peak_bytes(pipeline: Pipeline, step: Callable[[], T]) -> tuple[T, int]:
    """The result of the step, and bytes: the most that autograd saves in it at any moment, and the receive buffers.

    Call it on all ranks of a pipeline whose first step is over: that one allocates the receive buffers.
    """
    buffers = pipeline.receive_buffers()
    with SavedBytes([*pipeline.parameters(), *buffers]) as saved:
        result = step()
    storages = {buffer.untyped_storage().data_ptr(): buffer.untyped_storage().nbytes() for buffer in buffers}
    return result, saved.peak + sum(storages.values())
