"""Decoded images: from memory if they fit there, else from files that processes decode ahead of their use."""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch

from algorun_train.common.activity import say_workers
from algorun_train.common.errors import UserError
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.device_copies import host_buffer, to_device

from .batch import IGNORED
from .decoders import Decoders
from .image_decoding import CorruptImageError, check_header, decode
from .listing import Listing, check_tars
from .sampler import Indices

R = TypeVar("R")
BATCHES_AHEAD = 3  # enough to hide one slow file; more would only take memory
SCANNED_PER_RANK = 20_000  # about two seconds of header checks; further corrupt files are found when decoded
MAX_WORKERS = 8
NAMED = 5  # skipped images that the log names
PROGRESS_S = 10.0  # between two lines about a check that takes long


class Images(Protocol):
    """Images of one split. `labels` is an int64 tensor on the CPU; those of skipped images are IGNORED."""

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
    """Images decoded ahead of their use by `workers` processes, then copied to `device`. Those of `skipped` are zeros."""

    def __init__(
        self, listing: Listing, side: int, workers: int, device: torch.device, skipped: frozenset[int] = frozenset()
    ) -> None:
        self.labels = _labels(listing, skipped)
        self._listing, self._side, self._workers, self._device = listing, side, workers, device
        self._skipped = np.array(sorted(skipped), np.int64)
        self._idle: list[Decoders] = []

    def batches(self, requests: Iterable[R], indices: Callable[[R], Indices]) -> Iterator[tuple[R, torch.Tensor]]:
        slots = BATCHES_AHEAD + 1
        say_workers(self._workers)
        decoders = self._idle.pop() if self._idle else Decoders(self._listing, self._side, self._workers, slots)
        waiting: deque[tuple[R, int, int]] = deque()  # request, slot, number of images
        try:
            for number, request in enumerate(requests):
                wanted = indices(request)
                if len(wanted) > decoders.capacity:
                    while waiting:
                        yield self._finish(decoders, *waiting.popleft())
                    decoders.grow(len(wanted))
                decoders.start(number % slots, np.where(np.isin(wanted, self._skipped), -1, wanted))
                waiting.append((request, number % slots, len(wanted)))
                if len(waiting) == slots:
                    yield self._finish(decoders, *waiting.popleft())
            while waiting:
                yield self._finish(decoders, *waiting.popleft())
            self._idle.append(decoders)
        except BaseException:
            decoders.close()
            raise

    def _finish(self, decoders: Decoders, request: R, slot: int, count: int) -> tuple[R, torch.Tensor]:
        pixels = host_buffer((count, self._side, self._side, 3), torch.uint8, self._device)
        np.copyto(pixels.numpy(), decoders.finish(slot, count))
        return request, pixels.to(self._device, non_blocking=True)


def default_workers(local_world_size: int) -> int:
    """The number of workers for this rank: its share of the CPUs that the process may use."""
    return min(max(len(os.sched_getaffinity(0)) // local_world_size, 1), MAX_WORKERS)


@dataclass(frozen=True, slots=True)
class Opening:
    """How the images of a job are opened: resized to `side`, decoded by `workers` threads at the start and as many processes
    later, kept in up to `cache_mb` MiB. `skip_bad`: leave out images that cannot be decoded."""

    side: int
    workers: int
    cache_mb: int
    skip_bad: bool = False


def open_images(listing: Listing, opening: Opening, comm: Communicator) -> InMemory | OnDisk:
    """The images of a listing. Call it on all ranks. Raises UserError, the same on all ranks, for a corrupt image.

    If the decoded images need at most `cache_mb` MiB, each rank decodes its share now and sends it to the others. If they
    need more, each rank checks the headers of its share; with `skip_bad` it decodes its share once. So every rank knows
    before the first step which images do not count: in a pipeline the ranks that compute the loss read no images.
    """
    comm.on_all(lambda: check_tars(listing))
    count, side, workers = len(listing.files), opening.side, opening.workers
    size = side * side * 3
    shares = _shares(listing, comm)
    mine = shares[comm.rank].tolist()

    def tried(index: int) -> np.ndarray | str:
        try:
            return decode(listing, index, side)
        except CorruptImageError as error:
            if opening.skip_bad:
                return str(error)
            raise

    if count * size > opening.cache_mb * 2**20:
        if listing.hosts is not None:
            raise UserError(
                f"channel '{listing.channel}': hosts have different files, and their {count} decoded images take "
                f"{math.ceil(count * size / 2**20)} MiB; allowed: as much as --cache-mb, {opening.cache_mb}; "
                "fix: raise --cache-mb, or use S3DataDistributionType FullyReplicated"
            )
        if not opening.skip_bad:
            some = range(comm.rank, count, comm.size)[:SCANNED_PER_RANK]
            comm.on_all(lambda: _in_threads(lambda i: check_header(listing, i), some, workers))
            return OnDisk(listing, side, workers, comm.device)
        errors = _in_threads(lambda i: error if isinstance(error := tried(i), str) else "", mine, workers, comm.say)
        skipped = _skipped(listing, {i: e for i, e in zip(mine, errors, strict=True) if e}, comm)
        return OnDisk(listing, side, workers, comm.device, skipped)
    decoded = comm.on_all(lambda: _in_threads(tried, mine, workers))
    skipped = _skipped(listing, {i: d for i, d in zip(mine, decoded, strict=True) if isinstance(d, str)}, comm)
    kept = [np.zeros((side, side, 3), np.uint8) if isinstance(image, str) else image for image in decoded]
    pixels = torch.from_numpy(np.stack(kept) if kept else np.empty((0, side, side, 3), np.uint8))
    sizes = [len(share) * size for share in shares]
    everything = torch.cat(comm.gather_bytes(pixels.flatten(), sizes)).view(count, side, side, 3)
    if listing.hosts is not None:
        everything = everything[torch.from_numpy(np.argsort(np.concatenate(shares)))]
    return InMemory(everything.to(comm.device), _labels(listing, skipped))


def _shares(listing: Listing, comm: Communicator) -> list[Indices]:
    """The images that each rank decodes at the start: as many as another's, or where hosts have different files, a part of
    those that its host reads."""
    if listing.hosts is None:
        return np.array_split(np.arange(len(listing.files)), comm.size)
    hosts = comm.gather(comm.rank - comm.world.local_rank)
    parts = {host: iter(np.array_split(np.flatnonzero(listing.hosts == host), hosts.count(host))) for host in hosts}
    return [next(parts[host]) for host in hosts]


def _labels(listing: Listing, skipped: frozenset[int]) -> torch.Tensor:
    labels = torch.tensor(listing.labels)
    labels[sorted(skipped)] = IGNORED
    return labels


def _skipped(listing: Listing, mine: dict[int, str], comm: Communicator) -> frozenset[int]:
    """The images that some rank could not decode, with why; names them in the log. Raises UserError if it is all of them."""
    errors = {index: error for part in comm.gather(mine) for index, error in part.items()}
    if not errors:
        return frozenset()
    first = next(iter(sorted(errors)))
    if len(errors) == len(listing.files):
        raise UserError(f"option --skip-bad-samples: no image of channel '{listing.channel}' is left: {errors[first]}")
    comm.say(f"skipped: {len(errors)} of {len(listing.files)} images of channel '{listing.channel}' do not count")
    for index in sorted(errors)[:NAMED]:
        comm.say(f"skipped: {errors[index].partition('; allowed:')[0]}")
    return frozenset(errors)


def _in_threads(
    work: Callable[[int], R], items: Sequence[int], threads: int, say: Callable[[str], None] | None = None
) -> list[R]:
    results: list[R] = []
    due = time.monotonic() + PROGRESS_S
    with ThreadPoolExecutor(threads) as pool:
        for result in pool.map(work, items):
            results.append(result)
            if say and time.monotonic() > due:
                say(f"decoding images to find bad ones: {100 * len(results) // len(items)} % of this rank's")
                due = time.monotonic() + PROGRESS_S
    return results
