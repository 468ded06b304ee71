"""Training runs without training: any layouts, workers and kills, and which samples the checkpoint that counts was made of."""

from __future__ import annotations

import contextlib
import io
import random
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from algorun_train.data.order_files import WHOLE, File
from algorun_train.data.order_ranks import RankFiles
from algorun_train.data.order_sampler import StepSampler


@dataclass(frozen=True, slots=True)
class Run:
    """One start of a job: its hosts with the files of each, and when it is killed (after `steps` steps; 0: never)."""

    hosts: tuple[tuple[str, ...], ...]
    ranks_per_host: int
    batch: int
    accumulation: int
    workers: int
    save_every: int
    steps: int


@dataclass
class Ledger:
    """The samples of each epoch in the training that the last checkpoint stands for."""

    trained: list[Counter[tuple[str, int]]] = field(default_factory=list)
    saved: list[Counter[tuple[str, int]]] = field(default_factory=list)
    state: dict | None = None

    def save(self, state: dict) -> None:
        self.saved, self.state = [counter.copy() for counter in self.trained], state

    def kill(self) -> None:
        self.trained = [counter.copy() for counter in self.saved]


class ReadAhead:
    """A DataLoader with workers, as the sampler sees it: it takes two batches a worker before it gives the first one."""

    def __init__(self, sampler: StepSampler, workers: int) -> None:
        self.batch_sampler, self.ahead = sampler, 2 * workers

    def __iter__(self) -> Iterator[list[int]]:
        queue: deque[list[int]] = deque()
        for batch in self.batch_sampler:
            queue.append(batch)
            if len(queue) > self.ahead:
                yield queue.popleft()
        yield from queue


def samplers(run: Run, files: dict[str, int], seed: int) -> list[tuple[StepSampler, list[tuple[str, int]]]]:
    """Each rank's sampler, and the name of each index in its dataset."""
    held = [files_of for files_of in run.hosts for _ in range(run.ranks_per_host)]
    world = len(held)
    offers = [
        RankFiles(
            rank,
            world,
            run.batch,
            run.accumulation,
            seed,
            "pad",
            tuple(File(name, files[name]) for name in names),
        ).text()
        for rank, names in enumerate(held)
    ]
    made = []
    for rank, names in enumerate(held):
        counts = {name: files[name] for name in names}
        named = [(name, index) for name in names for index in range(files[name])]
        with contextlib.redirect_stdout(io.StringIO()):
            made.append(
                (
                    StepSampler(
                        len(named),
                        run.batch,
                        seed=seed,
                        accumulation=run.accumulation,
                        files=None if names == (WHOLE,) else counts,
                        rank=rank,
                        replicas=world,
                        exchange=lambda text: offers,
                    ),
                    named,
                )
            )
    return made


def carry_out(run: Run, files: dict[str, int], epochs: int, seed: int, ledger: Ledger) -> bool:
    """Runs from the ledger's checkpoint to the end (True) or to the kill (False)."""
    ranks = samplers(run, files, seed)
    for sampler, _ in ranks:
        if ledger.state is not None:
            sampler.load_state_dict(ledger.state)
    done = passes = 0
    for epoch in ranks[0][0].epochs(epochs):
        ledger.trained += [Counter() for _ in range(epoch + 1 - len(ledger.trained))]
        loaders = [sampler.counted(ReadAhead(sampler, run.workers)) for sampler, _ in ranks]
        for batches in zip(*loaders, strict=True):
            for (sampler, named), batch in zip(ranks, batches, strict=True):
                assert len(batch) == run.batch
                ledger.trained[epoch].update(named[index] for index in batch[: sampler.valid])
            passes += 1
            if passes % run.accumulation:
                continue
            done += 1
            assert ranks[0][0].position == ledger.trained[epoch].total()
            if done % run.save_every == 0:
                ledger.save(ranks[-1][0].state_dict())
                assert ledger.state == ranks[0][0].state_dict()
            if done == run.steps:
                ledger.kill()
                return False
    return True


def random_schedule(chance: random.Random) -> tuple[dict[str, int], int, list[Run]]:
    """Files with their counts, a number of epochs, and runs; the last one is not killed."""
    sharded = chance.random() < 0.4
    files = (
        {f"part-{n}": chance.randint(1, 40) for n in range(chance.randint(1, 9))}
        if sharded
        else {WHOLE: chance.randint(1, 150)}
    )
    kills = chance.randint(1, 5)
    runs = []
    for number in range(kills + 1):
        hosts = chance.randint(1, 3)
        names = list(files)
        if sharded:
            hosts = min(hosts, len(files))
            chance.shuffle(names)
            placed = tuple(tuple(names[host::hosts]) for host in range(hosts))
        else:
            placed = ((WHOLE,),) * hosts
        runs.append(Run(
            placed, chance.randint(1, 3), chance.randint(1, 6), chance.randint(1, 2), chance.randint(0, 4),
            chance.randint(1, 3), chance.randint(1, 12) if number < kills else 0,
        ))  # fmt: skip
    return files, chance.randint(1, 3), runs


def missing_and_double(files: dict[str, int], epochs: int, ledger: Ledger) -> tuple[int, int]:
    every = [(name, index) for name, count in files.items() for index in range(count)]
    missing = sum(counter[name] == 0 for counter in ledger.trained for name in every)
    missing += (epochs - len(ledger.trained)) * len(every)
    double = sum(max(0, times - 1) for counter in ledger.trained for times in counter.values())
    return missing, double
