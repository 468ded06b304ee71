"""Runs of the pipeline entrypoint: their options, how they end, and what they leave."""

from pathlib import Path

import torch

from tests.train.training_runs import Ranks

WORDS = ("the", "a", "cat", "dog", "runs", "sleeps", "under", "over", "table", "quick", "brown", "fox", "jumps", "lazy")
TINY = {"width": 16, "depth": 4, "heads": 2, "context": 32, "log-interval": 1}
SPLIT = {"pp": 2, "batch-size": 8, "microbatches": 4}  # two pipelines of two ranks
CLIPPED = {"epochs": 2, "clip-norm": 1}


def words(*tables: dict) -> list[str]:
    """Options of the tables, later ones first."""
    merged = {key: value for table in tables for key, value in table.items()}
    return [word for key, value in merged.items() for word in (f"--{key}", str(value))]


def ended(run: Ranks) -> str:
    """What rank 0 said of a run that went well."""
    codes = run.codes()
    assert codes == [0] * len(codes), "\n".join(run.text(rank) for rank in range(len(codes)))
    return run.text()


def refused(run: Ranks) -> str:
    """The one error line, equal on all ranks, of a run that did no step."""
    codes = run.codes()
    everything = [run.text(rank) for rank in range(len(codes))]
    assert codes == [64] * len(codes), everything
    last = {each.splitlines()[-1] for each in everything}
    assert len(last) == 1
    for each in everything:
        assert each.count("error: ") == 1
        assert "Traceback" not in each
        assert "step: " not in each
    (line,) = last
    assert line.startswith("error: ")
    return line


def weights(base: Path) -> dict[str, torch.Tensor]:
    return torch.load(base / "host0" / "model" / "model.pt", weights_only=True)


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def checkpoints(base: Path) -> list[str]:
    return sorted(folder.name for folder in (base / "host0" / "checkpoints").glob("step-*"))
