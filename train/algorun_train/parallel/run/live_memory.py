"""How many bytes a rank really holds in a step, measured where there is no GPU's counter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .pipeline import Pipeline


class _Kept:
    """A tensor kept by autograd; its end is the end of the keeping."""

    __slots__ = ("live", "tensor")

    def __init__(self, tensor: torch.Tensor, live: SavedBytes) -> None:
        self.tensor, self.live = tensor, live

    def __del__(self) -> None:
        self.live.dropped(self.tensor)


class SavedBytes:
    """Counts what autograd saves while it is entered: each storage once, however many operations keep a view of it.

    Storages of `apart` (weights, a stage's received inputs, which have their own place in the bill) do not count.
    """

    def __init__(self, apart: Iterable[torch.Tensor] = ()) -> None:
        self._apart = {tensor.untyped_storage().data_ptr() for tensor in apart}
        self._users: Counter[int] = Counter()
        self.now = self.peak = 0
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def __enter__(self) -> SavedBytes:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: torch.Tensor) -> _Kept:
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        if place not in self._apart:
            if not self._users[place]:
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
            self._users[place] += 1
        return _Kept(tensor.detach(), self)

    def _unpack(self, kept: Any) -> torch.Tensor:
        return kept.tensor

    def dropped(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        if place not in self._apart:
            self._users[place] -= 1
            if not self._users[place]:
                del self._users[place]
                self.now -= storage.nbytes()


def weighed(pipeline: Pipeline, step: Callable[[], Any]) -> tuple[Any, int]:
    """What the step returns, and the bytes of autograd's peak in it and of receive buffers; not the pipeline's first step."""
    buffers = pipeline.receive_buffers()
    with SavedBytes([*pipeline.parameters(), *buffers]) as saved:
        result = step()
    storages = {buffer.untyped_storage().data_ptr(): buffer.untyped_storage().nbytes() for buffer in buffers}
    return result, saved.peak + sum(storages.values())
