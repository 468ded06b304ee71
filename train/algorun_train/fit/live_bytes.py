"""Counts the bytes of all tensors that are alive, as operations make them and the last reference to them goes."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

OTHER = "other"  # the kind of a tensor that was never marked


class LiveBytes(TorchDispatchMode):
    """Within its block, each tensor that an operation returns counts until its memory is free. Tensors of FakeTensorMode, which
    have none, count as if they had; those of the meta device do not count. The bytes are those that were asked for: an allocator
    may round them up.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self._changes: list[tuple[int, int]] = []  # the number of a block of memory, and by how many bytes it grew
        self._kinds: dict[int, str] = {}  # of the blocks that were marked
        self._blocks: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}  # by the storage's id
        self._sizes: dict[int, int] = {}  # bytes of the blocks that are alive
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> Self:
        counted, resize = self, self._resize

        def resize_(storage: torch.UntypedStorage, size: int) -> object:
            done = resize(storage, size)
            counted._note(storage)
            return done

        torch.UntypedStorage.resize_ = resize_  # type: ignore[assignment,method-assign]  # FSDP2 frees and takes memory so: no operation says it
        return super().__enter__()  # type: ignore[no-any-return,no-untyped-call]  # torch's own

    def __exit__(self, *error: object) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]  # as above
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch's own

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],  # Any: whatever an operation takes and returns
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # it calls the operations on its share, which come here
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor) and each.device.type != "meta":
                self._note(each.untyped_storage())
        return result

    @property
    def changes(self) -> int:
        """How many changes were counted until now."""
        return len(self._changes)

    def mark(self, tensors: Iterable[torch.Tensor], kind: str) -> None:
        """Says what these tensors are, or this rank's shares of them; also for the time before this call."""
        for each in tensors:
            own = each.to_local() if isinstance(each, DTensor) else each
            known = self._blocks.get(id(own.untyped_storage()))
            if known:
                self._kinds[known[0]] = kind

    def mark_resized(self, kind: str) -> None:
        """Says what the blocks are that have taken memory more than once and were not marked."""
        times = Counter(block for block, grown in self._changes if grown > 0)
        self._kinds |= {block: kind for block, count in times.items() if count > 1 and block not in self._kinds}

    def peak(self, since: int) -> dict[str, int]:
        """The bytes of each kind at the moment, after the first `since` changes, at which most bytes were alive."""
        held: Counter[str] = Counter()
        total = most = 0
        found: dict[str, int] = {}
        for number, (block, grown) in enumerate(self._changes, start=1):
            held[self._kinds.get(block, OTHER)] += grown
            total += grown
            if number >= since and total > most:
                most, found = total, dict(held)
        return found

    def alive(self, of: Callable[[int], bool], since: int, until: int) -> int:
        """The bytes of blocks that were taken after the first `since` changes and live after the first `until`. `of`: whether a
        block that a change took counts."""
        taken = (change for change in self._changes[since:until] if change[0] >= since and of(change[0]))
        return sum(grown for _, grown in taken)

    def most(self, of: Callable[[int], bool], since: int) -> int:
        """The most bytes of such blocks that lived at once."""
        total = most = 0
        for block, grown in self._changes[since:]:
            if block >= since and of(block):
                total += grown
                most = max(most, total)
        return most

    def _note(self, storage: torch.UntypedStorage) -> None:
        """The storage has memory, or has another amount of it."""
        key, size = id(storage), storage.nbytes()
        known = self._blocks.get(key)
        if known is None:
            block = len(self._changes)  # a number that no other block has: each new one adds a change
            self._blocks[key] = block, weakref.ref(storage, lambda _: self._freed(key))
            self._sizes[block] = size
            self._changes.append((block, size))
        elif self._sizes[known[0]] != size:
            self._changes.append((known[0], size - self._sizes[known[0]]))
            self._sizes[known[0]] = size

    def _freed(self, key: int) -> None:
        block, _ = self._blocks.pop(key)
        self._changes.append((block, -self._sizes.pop(block)))
