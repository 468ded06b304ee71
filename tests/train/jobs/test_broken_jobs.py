"""The bundled jobs under the launcher, with something that becomes NaN on one of four ranks: it is named, and never saved."""

from __future__ import annotations

import re
import shutil

import pytest
import torch

from algorun.checkpoints import model_state
from tests.conftest import FAILS_ALONE, ROOT, algorun

PROGRAM = ROOT / "tests/launcher/programs/broken_job.py"
SMALL = "--width 16 --depth 2 --epochs 2 --image-size 8 --log-interval 4 --checkpoint-interval-s 0.01"
DDP, PIPELINE = f"{SMALL} --batch-size 64", f"{SMALL} --batch-size 4"


def run(folder, marker, job, what, rank, step, options, *words):
    return algorun(
        "simulate", "-j", "2x2", *words, str(PROGRAM), job, what, str(rank), str(step), *options.split(), cwd=folder,
        timeout=300, ALGORUN_TEST=marker, **FAILS_ALONE,
    )  # fmt: skip


def finite(done):
    """Whether all that the newest checkpoint holds of the model is finite. Each host has written shards."""
    merged = done.folder / "merged"
    for host in ("algo-1", "algo-2"):
        shutil.copytree(done.folder / host / "checkpoints", merged, dirs_exist_ok=True)
    state = model_state(merged)
    assert state
    return all(bool(each.isfinite().all()) for each in state.values() if isinstance(each, torch.Tensor))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "what", "rank", "step", "options", "says"),
    [
        ("ddp", "loss", 2, 9, DDP, "step 9, rank 2 on algo-2: the loss is nan (epoch 2, samples "),
        ("ddp", "overflow", 1, 9, f"{DDP} --precision bf16", "step 9, rank 1 on algo-1: the loss is inf (epoch 2, samples "),
        ("ddp", "gradient", 3, 9, f"{DDP} --clip-norm 1", "step 9, rank 3 on algo-2: the gradient of patches.stem.weight is nan"),
        ("ddp", "gradient", 1, 9, f"{DDP} --shard 4 --clip-norm 1", "step 9, rank 1 on algo-1: the gradient of patches.stem.weight is nan"),
        ("ddp", "overflow", 2, 9, f"{DDP} --shard 4 --precision bf16", "step 9, rank 2 on algo-2: the loss is inf (epoch 2, samples "),
        ("pipeline", "loss", 3, 5, f"{PIPELINE} --pp 2", "step 5, rank 3 on algo-2: the loss is nan (epoch 1, samples 32 to 39)"),
        ("pipeline", "overflow", 1, 5, f"{PIPELINE} --pp 2 --precision bf16", "step 5, rank 1 on algo-1: the loss is inf (epoch 1, samples 32 to 39)"),
        ("pipeline", "gradient", 0, 5, f"{PIPELINE} --pp 4 --clip-norm 1", "step 5, rank 0 on algo-1: the gradient of embed.tokens.weight is nan"),
    ],
)  # fmt: skip
def test_the_value_is_named_and_the_newest_checkpoint_is_finite(
    job, what, rank, step, options, says, tmp_path, nothing_left
):
    done = run(tmp_path, nothing_left, job, what, rank, step, options)
    assert done.code == 1, done.text
    assert done.failure("algo-1") == done.failure("algo-2")
    assert f"first value that is not finite: {says}" in done.text.replace("algorun: warning: ", "") + done.failure(
        "algo-1"
    )
    checkpoints = done.folder / "algo-1" / "checkpoints"
    newest = max(int(each.name.removeprefix("step-")) for each in checkpoints.iterdir())
    assert 0 < newest < step
    assert finite(done)


@pytest.mark.slow
@pytest.mark.parametrize("job", ["ddp", "pipeline"])
def test_a_broken_optimizer_state_is_not_saved_either(job, tmp_path, nothing_left):
    """A checkpoint that is due after the step is refused; if none is, the loss of the next step ends the job."""
    options = DDP if job == "ddp" else f"{PIPELINE} --pp 2"
    done = run(tmp_path, nothing_left, job, "weight", 1, 5, options)
    assert done.code == 1, done.text
    refused = r"after step 5 .* on rank 1 is not finite, so no checkpoint is written; the newest checkpoint is step-0000000[1-4]"
    lost = (
        r"the training loss .* has become nan in step 5 .*; the newest checkpoint from before it is step-0000000[1-4]"
    )
    assert re.search(f"TrainingError: ({refused}|{lost})", done.failure("algo-1"), re.DOTALL), done.text
    assert finite(done)


@pytest.mark.slow
def test_a_restart_resumes_from_the_last_good_checkpoint(tmp_path, nothing_left):
    done = run(tmp_path, nothing_left, "ddp", "gradient", 1, 9, DDP, "--restarts", "1")
    assert done.code == 0, done.text
    assert "resumed: " in done.out
    assert "restarts=1" in done.last
    assert finite(done)
