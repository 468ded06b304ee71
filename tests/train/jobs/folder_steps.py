"""One step of a folder's model on ranks (programs/folder_step.py), to compare layouts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.train.training_runs import Ranks

STEP = str(Path(__file__).parents[1] / "programs" / "folder_step.py")
Step = dict[str, Any]  # "loss", and "gradients" by name


def one_step(
    ranks: Callable[..., Ranks], folder: Path, out: Path, hosts: int, slots: int, pp: int = 0, shards: int = 1
) -> Step:
    """Loss and gradients of ranks with the whole model each, or of pipelines of `pp` ranks, sharded over `shards` of them."""
    file = out / f"{hosts * slots}-{pp}-{shards}.pt"
    run = ranks(hosts, slots, str(folder), str(file), str(pp), str(shards), program=STEP)
    assert run.codes() == [0] * (hosts * slots), "\n".join(map(run.text, range(hosts * slots)))
    step: Step = torch.load(file, weights_only=True)
    return step


def assert_same_step(one: Step, other: Step) -> None:
    """Within 1e-10 of each gradient's norm, in float64."""
    assert abs(other["loss"] / one["loss"] - 1) < 1e-12
    assert one["gradients"].keys() == other["gradients"].keys()
    largest = max(float(gradient.norm()) for gradient in one["gradients"].values())
    for name, gradient in one["gradients"].items():
        assert gradient.dtype == torch.float64
        scale = max(float(gradient.norm()), 1e-6 * largest)  # a bias of attention's keys has a gradient of 0
        assert torch.allclose(other["gradients"][name], gradient, rtol=0, atol=1e-10 * scale), name
