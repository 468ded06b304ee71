"""The ranks that share a dataset, under any launcher: their numbers, how they exchange a text, and what they agree on."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from algorun_train.common.errors import UserError

from .order_files import File, FileLayout, Holders

Exchange = Callable[[str], Sequence[str]]  # this rank's text to those of all ranks, in the order of ranks

# Of torchrun (algorun sets them under every engine), Open MPI, and launchers with PMI such as MPICH's and Slurm's.
VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


@dataclass(frozen=True, slots=True)
class RankFiles:
    """What a rank brings: its files, and the arguments that must be equal on all ranks. `error`: what is wrong with it."""

    rank: int
    replicas: int
    batch: int
    accumulation: int
    seed: int
    last: str
    files: tuple[File, ...]
    error: str = ""

    def text(self) -> str:
        files = [[file.name, file.count] for file in self.files]
        return json.dumps(
            [self.rank, self.replicas, self.batch, self.accumulation, self.seed, self.last, files, self.error]
        )


def offer_of(text: str) -> RankFiles:
    rank, replicas, batch, accumulation, seed, last, files, error = json.loads(text)
    held = tuple(File(name, count) for name, count in files)
    return RankFiles(rank, replicas, batch, accumulation, seed, last, held, error)


def numbers(environ: Mapping[str, str]) -> tuple[int, int, Exchange | None]:
    """This rank, the number of ranks, and how they exchange a text, if a library that the script has imported can do it."""
    dist, mpi = sys.modules.get("torch.distributed"), sys.modules.get("mpi4py.MPI")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size(), _by_torch
    if mpi is not None and mpi.COMM_WORLD.Get_size() > 1:
        return mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size(), mpi.COMM_WORLD.allgather
    for rank, size in VARIABLES:
        if environ.get(rank, "").isdecimal() and environ.get(size, "").isdecimal():
            return int(environ[rank]), int(environ[size]), None
    return 0, 1, None


def _by_torch(text: str) -> list[str]:
    import torch.distributed as dist

    texts = [""] * dist.get_world_size()
    dist.all_gather_object(texts, text)
    return texts


def agree(mine: RankFiles, offers: Sequence[RankFiles]) -> FileLayout:
    """The layout of all ranks, seen from this one.

    Raises:
        UserError: the same on all ranks, if a rank has an error, the ranks' arguments differ, or files overlap.
    """
    for offer in offers:
        if offer.error:
            raise UserError(offer.error)
    for name in ("batch", "accumulation", "seed", "last", "replicas"):
        found = [getattr(offer, name) for offer in offers]
        if len(set(found)) > 1:
            other = next(value for value in found if value != found[0])
            where = found.index(other)
            word = "batch_size" if name == "batch" else name
            raise UserError(
                f"algorun.data: {word} is {found[0]!r} on rank 0 and {other!r} on rank {where}; allowed: the same on all "
                "ranks; fix: give all ranks the same arguments"
            )
    by_rank: dict[int, tuple[File, ...]] = {}
    for offer in offers:
        if by_rank.setdefault(offer.rank, offer.files) != offer.files:
            raise UserError(
                f"algorun.data: two processes are rank {offer.rank} of the data with different files or numbers of samples; "
                "allowed: equal ones; fix: give each process that reads other data a `rank` of its own"
            )
    if len(offers) > 1 and sorted(by_rank) != list(range(mine.replicas)):
        raise UserError(
            f"algorun.data: replicas={mine.replicas}, and the processes are ranks {sorted(by_rank)} of them; allowed: every "
            "number from 0 to replicas - 1; fix: give both `rank` and `replicas`, or neither"
        )
    if not mine.files[0].name and len(set(by_rank.values())) > 1:
        found_counts = {rank: files[0].count for rank, files in by_rank.items()}
        other = next(rank for rank, count in found_counts.items() if count != found_counts[0])
        raise UserError(
            f"algorun.data: the dataset has {found_counts[0]} samples on rank 0 and {found_counts[other]} on rank {other}; "
            "allowed: the same dataset on all ranks; fix: if hosts hold different files (ShardedByS3Key), give `files`"
        )
    return _layout(mine, by_rank)


def _layout(mine: RankFiles, by_rank: Mapping[int, tuple[File, ...]]) -> FileLayout:
    if len(by_rank) == 1:  # ranks that cannot or need not exchange: all hold the same
        by_rank = dict.fromkeys(range(mine.replicas), mine.files)
    groups: dict[tuple[File, ...], list[int]] = {}
    for rank in sorted(by_rank):
        groups.setdefault(by_rank[rank], []).append(rank)
    _refuse_overlap(groups)
    holders = tuple(Holders(files, len(ranks)) for files, ranks in groups.items())
    number = list(groups).index(mine.files)
    replica = groups[mine.files].index(mine.rank)
    return FileLayout(holders, number, replica, mine.batch, mine.accumulation, mine.last == "drop")


def _refuse_overlap(groups: Mapping[tuple[File, ...], list[int]]) -> None:
    first: dict[str, int] = {}
    for files, ranks in groups.items():
        for file in files:
            if file.name in first:
                raise UserError(
                    f"algorun.data: file {file.name!r} is on ranks {first[file.name]} and {ranks[0]}, whose other files or "
                    "counts differ; allowed: ranks hold equal files in the same order, or entirely different ones; "
                    "fix: ShardedByS3Key for all channels, or for none"
                )
            first[file.name] = ranks[0]


def here() -> tuple[int, int, Exchange | None]:
    return numbers(os.environ)
