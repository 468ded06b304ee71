"""`StepSampler`: the order of samples for a script's own torch DataLoader, and the position in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, TypeVar

from algorun_train.common.activity import say_batch
from algorun_train.common.errors import UserError

from .order_files import WHOLE, Consumed, File
from .order_ranks import Exchange, RankFiles, agree, here, offer_of
from .sampler import OptimizerStep

T = TypeVar("T")
FORMAT = 1  # of `state_dict`


class StepSampler:
    """The `batch_sampler` of a DataLoader: yields the indices of this rank's batches.

    The order of an epoch depends on `seed` and the epoch alone; the position is the number of samples that were trained
    on. So an interrupted epoch continues with any number of ranks and of workers, and every sample is trained on exactly
    once.

    Create it on all ranks, after torch.distributed if the script uses that: the ranks compare their arguments, and rank 0
    prints what an epoch is. No other call exchanges anything between ranks.

    Args:
        dataset: what the DataLoader reads, or its number of samples.
        batch_size: samples per rank and pass.
        seed: a whole number from 0 to 2**32 - 1, the same on all ranks.
        accumulation: batches of a rank per optimizer step. The position moves after the last of them.
        last: what happens to the samples that fill no step on all ranks. "pad": each rank still gets a full batch, of
            which the first `valid` samples count. "drop": they are left out; the next epoch has another order.
        files: for channels with ShardedByS3Key, where each host has other files: the number of samples of each file that
            this rank can read, in the order of `dataset`. Names must be the same whichever host holds the file.
        rank, replicas: this process and the number of processes among those that read different samples. By default those
            of torch.distributed, mpi4py, torchrun's variables or mpirun's. Give them for pipelines: their ranks read the same.
        exchange: gives this rank's text and returns those of all ranks. By default torch.distributed or mpi4py.

    Attributes:
        seed: the seed of the order; `load_state_dict` replaces it.
        epoch: the epoch of the position, from 0.
        valid: how many samples of the last batch count, from 0 to `batch_size`: the first ones.

    Raises:
        UserError: if an argument is wrong, or the ranks' arguments differ. The same on all ranks that can exchange it.
    """

    def __init__(
        self,
        dataset: Sized | int,
        batch_size: int,
        *,
        seed: int = 0,
        accumulation: int = 1,
        last: str = "pad",
        files: Mapping[str, int] | None = None,
        rank: int | None = None,
        replicas: int | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        found_rank, found_replicas, found_exchange = here()
        exchange = exchange or found_exchange
        place = (found_rank if rank is None else rank, found_replicas if replicas is None else replicas)
        count = dataset if isinstance(dataset, int) else _length(dataset)
        held = (File(WHOLE, count),) if files is None else tuple(File(str(k), v) for k, v in files.items())
        mine = RankFiles(*place, batch_size, accumulation, seed, last, held)
        error = _wrong(mine, count, exchange is not None)
        if error:
            mine = RankFiles(0, 1, 1, 1, 0, "pad", (File(WHOLE, 1),), error)
        offers = [offer_of(text) for text in exchange(mine.text())] if exchange else [mine]
        self._layout = agree(mine, offers)
        self.seed, self.epoch = seed, 0
        self._begin: Consumed = self._nothing()  # where the steps of this epoch began in this process
        self._steps = 0  # taken since then
        self._counting = self._uncounted = False
        self._step, self.valid = OptimizerStep(0, 0, 0, (), 0), batch_size
        if mine.rank == 0:
            print("\n".join(self._said()), flush=True)

    @property
    def replicas(self) -> int:
        """The number of ranks that read different samples."""
        return self._layout.replicas

    @property
    def samples(self) -> int:
        """The samples of an epoch, over all ranks and files."""
        return sum(each.count for each in self._layout.holders)

    @property
    def position(self) -> int:
        """The samples of this epoch that were trained on, over all ranks."""
        left = self._layout.left(self._begin)
        return self.samples - sum(left) + sum(self._layout.taken(left, self._steps))

    @property
    def total(self) -> int:
        """The samples that count in the step of the last batch, over all ranks and passes.

        A mean over them: `losses[:sampler.valid].sum() * sampler.replicas / sampler.total`, with DistributedDataParallel.
        """
        return self._step.total

    def __len__(self) -> int:
        """The number of batches that are left for this rank in this epoch; the same on all ranks."""
        steps = self._layout.steps(self._layout.left(self._begin)) - self._steps
        return steps * self._layout.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        """The indices of each batch to the end of the epoch. The DataLoader calls it, and is ahead of the training."""
        self._uncounted = not self._counting
        for step in self._walk():
            for piece in step.pieces:
                yield piece.indices.tolist()

    def epochs(self, number: int) -> Iterator[int]:
        """Yields the epochs to train, from the one that was interrupted to `number` - 1. Call it on all ranks.

        Args:
            number: the number of epochs of the whole training, those before a resume included.
        """
        while self.epoch < number:
            epoch = self.epoch
            yield epoch
            if self.epoch == epoch:  # no batch was counted to the end; never the same epoch again
                self._next_epoch()

    def counted(self, loader: Iterable[T]) -> Iterator[T]:
        """Yields the batches of `loader` to the end of the epoch, and counts what the training has received.

        Call it on all ranks. What workers have read ahead does not count. A step counts from its last batch on, so save
        after the optimizer step.

        Args:
            loader: the DataLoader that has this sampler as its `batch_sampler`.

        Raises:
            UserError: if the loader has another sampler, or gives batches in another order.
        """
        _check_loader(loader, self)
        self._counting = True
        try:
            batches = iter(loader)
            for step in self._walk():
                for number, piece in enumerate(step.pieces, 1):
                    batch = next(batches)
                    self._step, self.valid = step, piece.valid
                    if number == len(step.pieces):
                        self._steps += 1
                    say_batch(f"epoch {self.epoch}, samples {step.begin} to {step.end - 1}")
                    yield batch
        finally:
            self._counting = False
        self._next_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Returns the position, equal on all ranks: a dictionary of numbers and names.

        Call it on any rank: ranks exchange nothing.

        Raises:
            UserError: if batches were taken from the DataLoader without `counted`.
        """
        if self._uncounted:
            raise UserError(
                "algorun.data: the DataLoader was read without sampler.counted(loader), so nobody knows which batches were "
                "trained on; fix: `for batch in sampler.counted(loader):`"
            )
        consumed = self._layout.consumed(self._begin, self.seed, self.epoch, self._steps)
        counts = {file.name: file.count for each in self._layout.holders for file in each.files}
        files = {name: [counts[name], consumed[name]] for name in sorted(counts)}
        return {"format": FORMAT, "seed": self.seed, "epoch": self.epoch, "files": files}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues at a saved position, with the seed of that run. Call it on all ranks with the same state, before a loop.

        Args:
            state: what `state_dict` returned, in a job with any number of ranks and any batch size.

        Raises:
            UserError: if the state is of another dataset, or is no state of a StepSampler.
        """
        counts = {file.name: file.count for each in self._layout.holders for file in each.files}
        if state.get("format") != FORMAT:
            raise UserError(
                f"algorun.data: a state of format {state.get('format')!r}; allowed: {FORMAT}; fix: load what "
                "StepSampler.state_dict() returned"
            )
        saved = {name: count for name, (count, _) in state["files"].items()}
        if saved != counts:
            raise UserError(
                f"algorun.data: {_difference(saved, counts)}; fix: load it with the data that it was saved with"
            )
        self.seed, self.epoch = state["seed"], state["epoch"]
        self._begin, self._steps = {name: done for name, (_, done) in state["files"].items()}, 0

    def _walk(self) -> Iterator[OptimizerStep]:
        """The steps that are left, from the position. What is consumed becomes the beginning."""
        self._begin = self._layout.consumed(self._begin, self.seed, self.epoch, self._steps)
        self._steps = 0
        return self._layout.walk(self._begin, self.seed, self.epoch)

    def _nothing(self) -> dict[str, int]:
        return {file.name: 0 for each in self._layout.holders for file in each.files}

    def _next_epoch(self) -> None:
        self.epoch, self._begin, self._steps = self.epoch + 1, self._nothing(), 0

    def _said(self) -> Iterator[str]:
        layout, counts = self._layout, [each.count for each in self._layout.holders]
        steps = layout.steps(counts)
        yield f"data: {self.samples} samples, {sum(layout.batches())} a step over {self.replicas} ranks, {steps} steps an epoch"
        if len(counts) > 1:
            yield f"data: {len(counts)} groups of ranks hold different files, with {', '.join(map(str, counts))} samples"
        dropped = self.samples - sum(layout.taken(counts, steps))
        filled = steps * sum(layout.batches()) - self.samples
        if layout.drop and dropped:
            yield f"data: {dropped} samples that fill no step are left out of each epoch (last='drop')"
        elif filled > 0:
            yield (
                f"data: {filled} places of an epoch's batches are filled with repeated samples; weigh the loss by "
                "sampler.valid, or give last='drop'"
            )


def _length(dataset: Sized) -> int:
    try:
        return len(dataset)
    except TypeError:
        return -1


def _wrong(mine: RankFiles, count: int, exchanges: bool) -> str:
    """What is wrong with one rank's arguments; "" if nothing is."""
    wrong = ""
    numbers = {"batch_size": mine.batch, "accumulation": mine.accumulation, "replicas": mine.replicas}
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            wrong = f"{name}={value!r}; allowed: a whole number from 1; fix: give one"
    if wrong:
        pass
    elif count < 1:
        wrong = (
            "a dataset without samples or without a length; allowed: one with len() >= 1; fix: not an IterableDataset"
        )
    elif not isinstance(mine.seed, int) or not 0 <= mine.seed < 2**32:
        wrong = f"seed={mine.seed!r}; allowed: a whole number from 0 to 2**32 - 1; fix: give one"
    elif mine.last not in ("pad", "drop"):
        wrong = f"last={mine.last!r}; allowed: 'pad', 'drop'; fix: give one of them"
    elif not isinstance(mine.rank, int) or not 0 <= mine.rank < mine.replicas:
        wrong = f"rank={mine.rank!r} of replicas={mine.replicas}; allowed: from 0 to replicas - 1; fix: give both or neither"
    elif any(not isinstance(file.count, int) or file.count < 1 for file in mine.files):
        file = next(file for file in mine.files if not isinstance(file.count, int) or file.count < 1)
        wrong = f"file {file.name!r} with {file.count!r} samples; allowed: from 1; fix: leave empty files out"
    elif mine.files[:1] and mine.files[0].name != WHOLE and sum(file.count for file in mine.files) != count:
        held = sum(file.count for file in mine.files)
        wrong = f"files with {held} samples for a dataset with {count}; allowed: the same number; fix: count all of its files"
    elif not mine.files:
        wrong = "files={} holds no file; allowed: one or more on each rank; fix: fewer hosts than files, or leave `files` out"
    elif mine.files[0].name != WHOLE and mine.replicas > 1 and not exchanges:
        wrong = (
            "files of several ranks that cannot exchange their counts; allowed: torch.distributed or mpi4py; "
            "fix: torch.distributed.init_process_group() before StepSampler"
        )
    return wrong and f"algorun.data: {wrong}"


def _check_loader(loader: object, sampler: StepSampler) -> None:
    if getattr(loader, "batch_sampler", sampler) is not sampler:
        raise UserError(
            "algorun.data: counted(loader) with a DataLoader of another sampler; allowed: its own; "
            "fix: DataLoader(dataset, batch_sampler=sampler)"
        )
    if not getattr(loader, "in_order", True):
        raise UserError(
            "algorun.data: a DataLoader with in_order=False; allowed: in_order=True, else nobody knows which samples a "
            "batch holds; fix: leave in_order out"
        )


def _difference(saved: Mapping[str, int], here: Mapping[str, int]) -> str:
    """The first difference between the files of a state and those of this run."""
    for name in sorted(saved.keys() | here.keys()):
        if saved.get(name) != here.get(name):
            break
    what = "the dataset" if name == WHOLE else f"file {name!r}"
    return f"{what} has {saved.get(name, 0)} samples in the state and {here.get(name, 0)} here"
