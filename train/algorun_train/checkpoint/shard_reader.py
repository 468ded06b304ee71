"""Reads a checkpoint of shards on all ranks, into any number of stages; each shard may be on any host."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from algorun_train.common.errors import UserError
from algorun_train.loop.progress import LoopProgress
from algorun_train.ranks.communicator import Communicator

from . import finished
from .optimizer_state import NamedState, load_named_state
from .resumed import Resumed
from .shard_saver import MODEL, OPTIMIZER
from .shards import Save, Shard, ShardStore, first_nan, holders, lacking
from .state_file import (
    LOSSES,
    POSITION,
    JobRecord,
    State,
    Values,
    compatible,
    does_not_fit,
    read_progress,
    read_record,
    resumed_line,
    unusable,
)

TensorPath = tuple[str, ...]  # (MODEL, parameter) or (OPTIMIZER, parameter, key)
Wants = Callable[[str], bool]  # whether this rank needs the parameter or buffer of that name
Keep = Callable[[str, torch.Tensor], torch.Tensor]  # what a rank keeps of a tensor of the parameter of that name


def _whole(name: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@dataclass(frozen=True, slots=True)
class Restored:
    """The tensors of a checkpoint that this rank needs. `folder` is the checkpoint's path on rank 0, `options` are those
    that it was trained with. `save` is None for a checkpoint of version 0.1.0. `passed_over`: newer ones that hold NaN."""

    folder: str
    progress: LoopProgress
    model: dict[str, torch.Tensor]
    optimizer: NamedState
    options: Values
    save: Save | None = None
    passed_over: tuple[Save, ...] = ()

    def described(self, root: Path, comm: Communicator) -> Resumed:
        """What the job knows about this checkpoint. `root` is this rank's folder. Call it on all ranks."""
        save = self.save
        found = comm.gather(finished.read_artifact(root, save)) if save is not None else []
        artifact = next((each for each in found if each is not None), None)
        return Resumed(self.folder, self.progress, self.options, artifact)

    def load_into(
        self, modules: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer, comm: Communicator
    ) -> None:
        """Loads weights and optimizer state into this rank's modules. Call it on all ranks.

        Raises UserError, the same on all ranks, if the checkpoint lacks a weight or one has another shape.
        """

        def load() -> None:
            absent = [name for module in modules for name in module.state_dict() if name not in self.model]
            if absent:
                more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
                raise unusable(self.folder, f"it has no {', '.join(absent[:3])}{more}")
            try:
                for module in modules:
                    own = {name: self.model[name] for name in module.state_dict()}
                    module.load_state_dict(own, strict=False)  # as in Pipeline.load_state_dict
                named = [each for module in modules for each in module.named_parameters()]
                load_named_state(optimizer, named, self.optimizer)
            except Exception as error:  # torch has no one class for values that do not fit
                raise does_not_fit(self.folder, error) from None

        comm.on_all(load)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A complete checkpoint. `ranks[n]` are the ranks that hold shard n; `own` are this rank's shards, by number."""

    save: Save
    folder: str
    ranks: dict[int, list[int]]
    own: dict[int, Shard]


@dataclass(frozen=True, slots=True)
class _Content:
    """A shard without the values of its tensors. All ranks need it to receive the tensors that they want."""

    record: JobRecord
    progress: LoopProgress
    tensors: list[tuple[TensorPath, torch.dtype, torch.Size]]
    numbers: list[tuple[str, str, float]]  # parameter, key and value of all optimizer state except tensors
    diverged: str  # the first tensor that holds NaN, "" where none does


class Diverged(UserError):
    """A checkpoint that holds NaN. `where`: the file and the tensor."""

    def __init__(self, folder: str, where: str) -> None:
        super().__init__(
            f"checkpoint {folder} holds NaN in {where}: training had diverged before it was saved, and no older checkpoint "
            "can be used; fix: --resume never (algorun submit: --clean-state), with a smaller --lr or with --clip-norm"
        )
        self.where = where


class ShardReader:
    """Finds and reads checkpoints of shards. `say` gets the lines for rank 0's log."""

    def __init__(self, store: ShardStore, comm: Communicator, say: Callable[[object], None]) -> None:
        self._store, self._comm, self._say = store, comm, say

    def newest(self, identity: Values, wants: Wants, keep: Keep = _whole) -> Restored | None:
        """Reads the newest complete, undamaged checkpoint in all ranks' folders. Returns the parameters and buffers that this
        rank `wants`, and of each of their tensors what `keep` makes of it; None if there is no such checkpoint.

        Call it on all ranks: all read the same checkpoint. If a shard is damaged or missing, or a tensor holds NaN, a warning
        names it, and the next older checkpoint is tried. Each shard is read by one rank, which sends it tensor by tensor to the ranks that
        want it. So a rank needs memory for its own tensors and for one shard. Raises UserError, the same on all ranks, if
        another job or a newer version wrote the checkpoint, or all that are complete hold NaN.
        """
        self._comm.on_all(self._store.check_version)
        found = self._comm.gather(self._store.found())
        for text in dict.fromkeys(text for _, warnings in found for text in warnings):
            self._say(f"warning: {text}")
        diverged: dict[Save, Diverged] = {}
        for save, ranks in holders([shards for shards, _ in found]).items():
            folder = self._folder(save)
            if missing := lacking(save, ranks):
                self._say(
                    f"warning: checkpoint {folder} lacks {_listed(missing, save)} on all hosts and is passed over"
                )
                continue
            own = {shard.number: shard for shard in found[self._comm.rank][0] if shard.save == save}
            candidate = _Candidate(save, folder, ranks, own)
            readers = self._readers(candidate)
            if readers is None:
                continue
            try:
                restored = self._read(candidate, readers, identity, wants, keep)
            except Diverged as error:
                diverged[save] = error
                self._say(f"warning: checkpoint {folder} is passed over: it holds NaN in {error.where}")
                continue
            self._say(resumed_line(folder, restored.progress))
            return replace(restored, passed_over=tuple(diverged))
        if diverged:
            raise next(iter(diverged.values()))  # of the newest one
        if any(shards or warnings for shards, warnings in found):
            folder = self._comm.from_leader(lambda: str(self._store.root))
            self._say(f"warning: no checkpoint in {folder} can be used, so none of them is resumed")
        return None

    def _folder(self, save: Save) -> str:
        return self._comm.from_leader(lambda: str(self._store.root / save.folder))

    def _readers(self, candidate: _Candidate) -> list[int] | None:
        """For each shard the rank that is to read it, because its copy is undamaged; None if some shard has no such copy.

        First one copy of each shard is checked; the ranks share this work. Only if it is damaged, the other copies are
        checked.
        """
        save, ranks, own, rank = candidate.save, candidate.ranks, candidate.own, self._comm.rank
        readers = [ranks[number][number % len(ranks[number])] for number in range(save.shards)]
        checked = self._comm.gather(
            {n: self._store.fault(own[n]) for n, reader in enumerate(readers) if reader == rank}
        )
        damaged = {n: fault for row in checked for n, fault in row.items() if fault}
        if not damaged:
            return readers
        for n, fault in damaged.items():
            self._say(f"warning: checkpoint {candidate.folder} is damaged on rank {readers[n]}'s host: {fault}")
        others = self._comm.gather(
            {n: self._store.fault(own[n]) for n in damaged if rank in ranks[n] and rank != readers[n]}
        )
        for n in damaged:
            undamaged = [rank for rank, row in enumerate(others) if n in row and row[n] is None]
            if not undamaged:
                listed = _listed([n], save)
                self._say(
                    f"warning: checkpoint {candidate.folder} is not complete and is passed over: no undamaged copy of {listed}"
                )
                return None
            readers[n] = undamaged[0]
        return readers

    def _read(self, candidate: _Candidate, readers: list[int], identity: Values, wants: Wants, keep: Keep) -> Restored:
        model: dict[str, torch.Tensor] = {}
        optimizer: NamedState = {}
        progress: LoopProgress | None = None
        options: Values = {}
        folder = candidate.folder
        for number, source in enumerate(readers):
            content, tensors = self._content(candidate, number, source)
            compatible(content.record.identity, identity, folder)
            if content.diverged:  # the same on all ranks, before any of them waits for a tensor
                file = Shard(candidate.save, number, 0, "").file
                raise Diverged(folder, f"{content.diverged} ({file})")
            if progress is not None and content.progress != progress:
                raise unusable(folder, "its shards are of different positions")
            progress, options = content.progress, content.record.options
            for name, key, value in content.numbers:
                if wants(name):
                    optimizer.setdefault(name, {})[key] = value
            for path, whole in self._received(content, tensors, wants, source):
                tensor = keep(path[1], whole)
                if path[0] == MODEL:
                    model[path[1]] = tensor
                else:
                    optimizer.setdefault(path[1], {})[path[2]] = tensor
        if progress is None:
            raise unusable(folder, "it has no shards")
        return Restored(folder, progress, model, optimizer, options, candidate.save)

    def _content(
        self, candidate: _Candidate, number: int, source: int
    ) -> tuple[_Content, dict[TensorPath, torch.Tensor]]:
        """The content of a shard on all ranks, and its tensors on rank `source`, which reads it ({} on the others)."""
        tensors: dict[TensorPath, torch.Tensor] = {}

        def read() -> _Content:
            content, values = _without_values(self._store.read(candidate.own[number]), candidate.folder)
            tensors.update(values)
            return content

        return self._comm.from_rank(source, read), tensors

    def _received(
        self, content: _Content, tensors: dict[TensorPath, torch.Tensor], wants: Wants, source: int
    ) -> Iterator[tuple[TensorPath, torch.Tensor]]:
        """The tensors that this rank wants, one after the other. A tensor that only its reader wants is not sent.

        Exhaust it on all ranks.
        """
        wanted = [wants(path[1]) for path, _, _ in content.tensors]
        rows = self._comm.gather(wanted)
        for index, (path, dtype, shape) in enumerate(content.tensors):
            tensor = tensors.pop(path) if self._comm.rank == source else None
            if any(row[index] for rank, row in enumerate(rows) if rank != source):
                tensor = torch.empty(shape, dtype=dtype) if tensor is None else tensor.contiguous()
                self._comm.broadcast(tensor.view(-1).view(torch.uint8), source)
            if wanted[index] and tensor is not None:
                yield path, tensor


def _listed(numbers: list[int], save: Save) -> str:
    return f"shard {', '.join(map(str, numbers))} of {save.shards} (from 0)"


def _without_values(saved: State, where: str) -> tuple[_Content, dict[TensorPath, torch.Tensor]]:
    """Splits the state of a shard into its content and its tensors. Raises UserError for a state that is no shard's."""
    try:
        numbers = []
        tensors: dict[TensorPath, torch.Tensor] = {(MODEL, str(name)): value for name, value in saved[MODEL].items()}
        for name, values in saved[OPTIMIZER].items():
            for key, value in values.items():
                if isinstance(value, torch.Tensor):
                    tensors[(OPTIMIZER, str(name), str(key))] = value
                else:
                    numbers.append((str(name), str(key), value))
        described = [(path, tensor.dtype, tensor.shape) for path, tensor in tensors.items()]
        progress = read_progress(saved[POSITION], saved[LOSSES])
        return _Content(read_record(saved), progress, described, numbers, first_nan(saved)), tensors
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise does_not_fit(where, error) from None
