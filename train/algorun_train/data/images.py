"""Decoded images: from memory if they fit there, else from files that a pool of threads decodes.

Threads, not processes: Pillow releases the interpreter's lock while it decodes and resizes, errors keep their type, and no
data passes through /dev/shm, which has only 64 MB in many containers.
"""

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

import numpy as np
import torch

from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.device_copies import host_buffer, to_device

from .folder import Listing, check_header, decode
from .sampler import Indices

R = TypeVar("R")
BATCHES_AHEAD = 3  # enough to hide one slow file; more would only take memory
SCANNED_PER_RANK = 20_000  # about two seconds of header checks; further corrupt files are found when decoded
MAX_THREADS = 8


class Images(Protocol):
    """Images of one split. `labels` is an int64 tensor on the CPU."""

    labels: torch.Tensor

    def batches(self, requests: Iterable[R], indices: Callable[[R], Indices]) -> Iterator[tuple[R, torch.Tensor]]:
        """Yields each request with its images, uint8 [B, H, W, 3], in the order of the requests."""
        ...


class InMemory:
    """All images, decoded, on the training device. A batch is one gather."""

    def __init__(self, pixels: torch.Tensor, labels: torch.Tensor) -> None:
        self.pixels, self.labels = pixels, labels

    def batches(self, requests: Iterable[R], indices: Callable[[R], Indices]) -> Iterator[tuple[R, torch.Tensor]]:
        for request in requests:
            yield request, self.pixels[to_device(torch.from_numpy(indices(request)), self.pixels.device)]


class Unread:
    """Labels without images: the batches are zeros of the right shape, which take no memory."""

    def __init__(self, labels: torch.Tensor, side: int, device: torch.device) -> None:
        self.labels = labels
        self._image = torch.zeros((), dtype=torch.uint8, device=device).expand(side, side, 3)

    def batches(self, requests: Iterable[R], indices: Callable[[R], Indices]) -> Iterator[tuple[R, torch.Tensor]]:
        for request in requests:
            yield request, self._image.expand(len(indices(request)), -1, -1, -1)


class OnDisk:
    """Files decoded ahead of their use by `threads` threads, then copied to `device`."""

    def __init__(self, listing: Listing, side: int, threads: int, device: torch.device) -> None:
        self.labels = torch.tensor(listing.labels)
        self._listing, self._side, self._threads, self._device = listing, side, threads, device

    def batches(self, requests: Iterable[R], indices: Callable[[R], Indices]) -> Iterator[tuple[R, torch.Tensor]]:
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="decode")
        waiting: deque[tuple[R, list[Future[np.ndarray]]]] = deque()
        try:
            for request in requests:
                parts = np.array_split(indices(request), self._threads)
                waiting.append((request, [pool.submit(self._decode, part) for part in parts if len(part)]))
                if len(waiting) > BATCHES_AHEAD:
                    yield self._finish(*waiting.popleft())
            while waiting:
                yield self._finish(*waiting.popleft())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _decode(self, indices: Indices) -> np.ndarray:
        return np.stack([decode(self._listing, int(index), self._side) for index in indices])

    def _finish(self, request: R, parts: list[Future[np.ndarray]]) -> tuple[R, torch.Tensor]:
        decoded = [part.result() for part in parts]
        pixels = host_buffer((sum(map(len, decoded)), self._side, self._side, 3), torch.uint8, self._device)
        np.concatenate(decoded, out=pixels.numpy())
        return request, pixels.to(self._device, non_blocking=True)


def default_threads(local_world_size: int) -> int:
    """The number of threads for this rank: its share of the CPUs that the process may use."""
    return min(max(len(os.sched_getaffinity(0)) // local_world_size, 1), MAX_THREADS)


def open_folder(listing: Listing, side: int, threads: int, cache_mb: int, comm: Communicator) -> InMemory | OnDisk:
    """The images of a listing. Call it on all ranks. Raises UserError, the same on all ranks, for a corrupt file.

    If the decoded images need at most `cache_mb` MiB, each rank decodes its share now and sends it to the others. If they
    need more, each rank checks the headers of its share.
    """
    count, size = len(listing.files), side * side * 3
    if count * size > cache_mb * 2**20:
        mine = range(comm.rank, count, comm.size)[:SCANNED_PER_RANK]
        comm.on_all(lambda: _in_threads(lambda i: check_header(listing, i), mine, threads))
        return OnDisk(listing, side, threads, comm.device)
    bounds = [count * rank // comm.size for rank in range(comm.size + 1)]
    mine = range(bounds[comm.rank], bounds[comm.rank + 1])
    decoded = comm.on_all(lambda: _in_threads(lambda i: decode(listing, i, side), mine, threads))
    pixels = torch.from_numpy(np.stack(decoded) if decoded else np.empty((0, side, side, 3), np.uint8))
    sizes = [(end - begin) * size for begin, end in itertools.pairwise(bounds)]
    everything = torch.cat(comm.gather_bytes(pixels.flatten(), sizes)).view(count, side, side, 3)
    return InMemory(everything.to(comm.device), torch.tensor(listing.labels))


def _in_threads(work: Callable[[int], R], items: Iterable[int], threads: int) -> list[R]:
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))
