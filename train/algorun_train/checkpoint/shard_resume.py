"""How all ranks come back to one checkpoint of several parts, whatever the number of stages now, wherever parts lie."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from algorun_train.loop.loop import Progress
from algorun_train.ranks.communicator import Communicator

from . import store as checkpoint
from .optimizer_state import NamedState, load_named_state, named_state
from .resume import read_progress
from .shards import Part, PartStore, Save, holders, lacking

MODEL, OPTIMIZER = "model", "optimizer"


def state(
    identity: dict[str, Any],
    progress: Progress,
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    without: Collection[str] = (),
) -> dict[str, Any]:
    """The state of one part: of `module`, whose names are the whole model's, but for those that another part has
    (`without`). `optimizer` may be for more than that."""
    return {
        "format": checkpoint.FORMAT,
        "identity": identity,
        "position": asdict(progress.position),
        "losses": progress.losses,
        MODEL: {name: tensor for name, tensor in module.state_dict().items() if name not in without},
        OPTIMIZER: named_state(optimizer, ((n, p) for n, p in module.named_parameters() if n not in without)),
    }


@dataclass(frozen=True, slots=True)
class Restored:
    """What this rank wanted of a checkpoint. `where` is rank 0's name of its folder."""

    where: str
    progress: Progress
    model: dict[str, torch.Tensor]
    optimizer: NamedState

    def load_into(
        self, modules: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer, comm: Communicator
    ) -> None:
        """Brings this rank's modules and their optimizer to the checkpoint. On all ranks; UserError on all alike."""

        def load() -> None:
            absent = [name for module in modules for name in module.state_dict() if name not in self.model]
            if absent:
                more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
                raise checkpoint.unusable(self.where, f"it has no {', '.join(absent[:3])}{more}")
            try:
                for module in modules:
                    own = {name: self.model[name] for name in module.state_dict()}
                    module.load_state_dict(own, strict=False)  # as in Pipeline.load_state_dict
                named = [each for module in modules for each in module.named_parameters()]
                load_named_state(optimizer, named, self.optimizer)
            except Exception as error:  # torch has no one class for parts that do not fit each other
                raise checkpoint.unusable(self.where, f"{type(error).__name__}: {error}"[:200]) from None

        comm.on_all(load)


def restore(
    store: PartStore,
    identity: dict[str, Any],
    wants: Callable[[str], bool],
    comm: Communicator,
    say: Callable[[object], None],
) -> Restored | None:
    """The newest complete checkpoint over all ranks' folders, of it the names that this rank wants; None without one.

    On all ranks, which agree on it. Parts that are torn or missing are reported, and the next older checkpoint is
    taken. Each part is read by one rank that has it, and goes tensor by tensor to those that want it: no rank needs
    memory for more than one part and what it keeps. UserError, the same on all, when it is another job's.
    """
    found = comm.gather(store.found())
    for text in dict.fromkeys(text for _, complaints in found for text in complaints):
        say(f"warning: {text}")
    union = holders([parts for parts, _ in found])
    for save, ranks in union.items():
        folder = comm.from_leader(lambda save=save: str(store.root / save.folder))  # type: ignore[misc]
        if missing := lacking(save, ranks):
            say(f"warning: checkpoint {folder} lacks {_listed(missing, save)} on all hosts and is passed over")
            continue
        mine = {part.number: part for part in found[comm.rank][0] if part.save == save}
        readers = _readers(store, save, ranks, mine, folder, comm, say)
        if readers is not None:
            restored = _restored(store, identity, wants, readers, mine, folder, comm)
            at = restored.progress.position
            say(f"resumed: {folder}, epoch {at.epoch + 1}, {at.samples} samples of it done, step {at.step}")
            return restored
    return None


def _readers(
    store: PartStore,
    save: Save,
    ranks: dict[int, list[int]],
    mine: dict[int, Part],
    folder: str,
    comm: Communicator,
    say: Callable[[object], None],
) -> list[int] | None:
    """For each part a rank whose copy of it is whole; None when some part has none left.

    One copy of each is looked at first, ranks taking turns; the others only where that one is torn.
    """
    readers = [ranks[number][number % len(ranks[number])] for number in range(save.parts)]
    faults = comm.gather({n: store.fault(mine[n]) for n, rank in enumerate(readers) if rank == comm.rank})
    torn = {n: fault for row in faults for n, fault in row.items() if fault}
    if not torn:
        return readers
    for n, fault in torn.items():
        say(f"warning: checkpoint {folder} is torn on rank {readers[n]}'s host: {fault}")
    again = comm.gather({n: store.fault(mine[n]) for n in torn if comm.rank in ranks[n] and comm.rank != readers[n]})
    for n in torn:
        whole = [rank for rank, row in enumerate(again) if n in row and row[n] is None]
        if not whole:
            say(f"warning: checkpoint {folder} is not complete and is passed over: no whole {_listed([n], save)}")
            return None
        readers[n] = whole[0]
    return readers


def _listed(numbers: list[int], save: Save) -> str:
    return f"part {', '.join(map(str, numbers))} of {save.parts} (from 0)"


@dataclass(frozen=True, slots=True)
class _Content:
    """A part without its tensors' values: what all ranks have to know to receive those that they want."""

    identity: dict[str, Any]
    progress: Progress
    tensors: list[tuple[tuple[str, ...], torch.dtype, torch.Size]]  # (MODEL, name) or (OPTIMIZER, name, key)
    numbers: list[tuple[str, str, float]]  # name, key and value of optimizer state that is no tensor


def _restored(
    store: PartStore,
    identity: dict[str, Any],
    wants: Callable[[str], bool],
    readers: list[int],
    mine: dict[int, Part],
    folder: str,
    comm: Communicator,
) -> Restored:
    model: dict[str, torch.Tensor] = {}
    optimizer: NamedState = {}
    progress: Progress | None = None
    for number, source in enumerate(readers):
        tensors: dict[tuple[str, ...], torch.Tensor] = {}

        def read(number: int = number, tensors: dict[tuple[str, ...], torch.Tensor] = tensors) -> _Content:
            return _take_apart(store.read(mine[number]), tensors, folder)

        content = comm.from_rank(source, read)
        checkpoint.compatible(content.identity, identity, folder)
        if progress is not None and content.progress != progress:
            raise checkpoint.unusable(folder, "its parts are of different positions")
        progress = content.progress
        for name, key, value in content.numbers:
            if wants(name):
                optimizer.setdefault(name, {})[key] = value
        for path, tensor in _received(content, tensors, wants, source, comm):
            if path[0] == MODEL:
                model[path[1]] = tensor
            else:
                optimizer.setdefault(path[1], {})[path[2]] = tensor
    if progress is None:
        raise checkpoint.unusable(folder, "it has no parts")
    return Restored(folder, progress, model, optimizer)


def _take_apart(saved: dict[str, Any], tensors: dict[tuple[str, ...], torch.Tensor], where: str) -> _Content:
    """Moves the tensors of a part into `tensors` and returns the rest. UserError for what `state` has not made."""
    try:
        numbers = []
        tensors |= {(MODEL, str(name)): tensor for name, tensor in saved[MODEL].items()}
        for name, values in saved[OPTIMIZER].items():
            for key, value in values.items():
                if isinstance(value, torch.Tensor):
                    tensors[(OPTIMIZER, str(name), str(key))] = value
                else:
                    numbers.append((str(name), str(key), value))
        described = [(path, tensor.dtype, tensor.shape) for path, tensor in tensors.items()]
        progress = read_progress(saved["position"], saved["losses"])
        return _Content(dict(saved["identity"]), progress, described, numbers)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise checkpoint.unusable(where, f"{type(error).__name__}: {error}"[:200]) from None


def _received(
    content: _Content,
    tensors: dict[tuple[str, ...], torch.Tensor],
    wants: Callable[[str], bool],
    source: int,
    comm: Communicator,
) -> list[tuple[tuple[str, ...], torch.Tensor]]:
    """The tensors that this rank wants. Those that only their reader wants are not sent."""
    wanted = [wants(path[1]) for path, _, _ in content.tensors]
    rows = comm.gather(wanted)
    kept = []
    for index, (path, dtype, shape) in enumerate(content.tensors):
        tensor = tensors.pop(path) if comm.rank == source else None
        if any(row[index] for rank, row in enumerate(rows) if rank != source):
            tensor = torch.empty(shape, dtype=dtype) if tensor is None else tensor.contiguous()
            comm.broadcast(tensor.view(-1).view(torch.uint8), source)
        if wanted[index] and tensor is not None:
            kept.append((path, tensor))
    return kept
