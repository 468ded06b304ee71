"""A stand-in for pipeline training: a GPT cut into stages whose gradients are made up, equal on every layout.

As a program, one rank of it: `sharded_training.py JSON`, where the JSON lists what to do, see `main`.
"""

import copy
import json
import os
import sys
import zlib
from pathlib import Path

import torch

from algorun_train.checkpoint.shard_reader import ShardReader
from algorun_train.checkpoint.shard_saver import ShardSaver, shard_state
from algorun_train.checkpoint.shards import ShardStore
from algorun_train.checkpoint.state_file import JobRecord
from algorun_train.common.errors import guarded, leave
from algorun_train.loop.progress import LoopProgress, Position
from algorun_train.models.gpt import GptSpec, build
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world

SPEC = GptSpec(vocabulary=11, context=4, width=8, depth=2, heads=2)
UNITS = ("embed.", "blocks.0.", "blocks.1.", "norm.|head.")  # can be cut into 1, 2 or 4 stages
WHOLE = build(SPEC, seed=0)  # once: ranks that are threads share the generator that it draws from
IDENTITY = {"model": "gpt", "seed": 0}
RECORD = JobRecord(IDENTITY, {"lr": 0.01})


class Stage:
    """One of `stages` stages, with an optimizer of its own kind."""

    def __init__(self, number: int, stages: int) -> None:
        size = len(UNITS) // stages
        prefixes = tuple(p for unit in UNITS[number * size : (number + 1) * size] for p in unit.split("|"))
        self.number, self.module = number, copy.deepcopy(WHOLE)
        for name, parent in list(self.module.named_modules()):
            for child in list(parent._modules):
                path = f"{name}.{child}." if name else f"{child}."
                if not any(path.startswith(p) or p.startswith(path) for p in prefixes):
                    del parent._modules[child]

    def names(self) -> list[str]:
        return list(self.module.state_dict())


class Layout:
    """What one rank of a job with `stages` stages holds: several stages, or one that it shares with other ranks."""

    def __init__(self, stages: int, rank: int, ranks: int) -> None:
        self.stages = stages
        own = [s for s in range(stages) if s % ranks == rank] if stages >= ranks else [rank * stages // ranks]
        self.held = [Stage(number, stages) for number in own]
        self.writes = stages >= ranks or rank % (ranks // stages) == 0
        parameters = [p for stage in self.held for p in stage.module.parameters()]
        self.optimizer = torch.optim.AdamW(parameters, lr=0.01, fused=True)

    def names(self) -> set[str]:
        return {name for stage in self.held for name in stage.names()}

    def step(self, number: int) -> None:
        for stage in self.held:
            for name, parameter in stage.module.named_parameters():
                generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {number}".encode()))
                parameter.grad = torch.randn(parameter.shape, generator=generator)
        self.optimizer.step()

    def states(self, step: int) -> dict[int, dict]:
        progress = LoopProgress(Position(0, 10 * step, step), [0.5])
        return {s.number: shard_state(RECORD, progress, s.module, self.optimizer) for s in self.held if self.writes}

    def resume(self, store: ShardStore, comm: Communicator, say=print) -> int:
        """The step of the checkpoint that all ranks went back to; 0 without one."""
        restored = ShardReader(store, comm, say).newest(IDENTITY, self.names().__contains__)
        if restored is None:
            return 0
        assert set(restored.model) <= self.names()
        restored.load_into([s.module for s in self.held], self.optimizer, comm)
        return restored.progress.position.step

    def everything(self) -> dict[str, torch.Tensor]:
        """Weights and moments by name."""
        found = {}
        for stage in self.held:
            found |= {name: tensor.clone() for name, tensor in stage.module.state_dict().items()}
            for name, parameter in stage.module.named_parameters():
                found |= {f"{name}/{k}": torch.as_tensor(v).clone() for k, v in self.optimizer.state[parameter].items()}
        return found


def files(root: Path) -> list[str]:
    """All files below `root`, by name."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    """Whether both hold the same, bit by bit."""
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def straight(steps: int) -> dict[str, torch.Tensor]:
    """Where the whole model arrives after so many steps that nothing interrupts."""
    whole = Layout(1, 0, 1)
    for number in range(1, steps + 1):
        whole.step(number)
    return whole.everything()


def main(argv: list[str]) -> int:
    """Each item of the JSON list is a job: {"stages", "to": last step or "only": number of steps, "keep"}; prints the step that each begins
    and ends with, and leaves what this rank holds then in its base folder."""
    base = Path(os.environ["SAGEMAKER_BASE_DIR"])
    store_root = Path(os.environ.get("PART_ROOT", base / "checkpoints"))
    with joined(read_world(os.environ)) as comm:
        say = print if comm.is_leader else lambda text: None
        for job in json.loads(argv[0]):
            layout = Layout(job["stages"], comm.rank, comm.size)
            store = ShardStore(store_root, job.get("keep", 2))
            begin = layout.resume(store, comm, say)
            saver = ShardSaver(store, comm, say)
            end = begin + job["only"] if "only" in job else job["to"]
            for number in range(begin + 1, end + 1):
                layout.step(number)
                saver.save(number, layout.stages, layout.states(number))
            saver.finish()
            print(f"from {begin} to {end}", flush=True)
        torch.save(layout.everything(), base / f"rank{comm.rank}.pt")
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    leave(guarded(main))
