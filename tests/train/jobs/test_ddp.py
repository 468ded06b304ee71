"""The ddp entrypoint as one rank: variants that must train, and what it leaves behind."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from algorun.inside.stop_agreement import StopVerdict
from algorun_train.common.errors import UserError
from algorun_train.data import digits
from tests.train.training_runs import ROOT, SMALL, clean_environ, epochs, once, write_images


def run(tmp_path, *args, **popen):
    command = [sys.executable, "-u", "-m", "algorun_train.jobs.ddp", *args]
    return subprocess.run(
        command, env=clean_environ(tmp_path / "ml"), cwd=ROOT, capture_output=True, text=True, timeout=120, **popen
    )


def test_the_embedded_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    pixels, labels = digits.load()
    theirs, their_labels = load_digits(return_X_y=True)
    assert np.array_equal(labels, their_labels)
    assert np.allclose(pixels[..., 1].reshape(-1, 64) * (16 / 255), theirs, atol=0.05)


@pytest.mark.slow(but=["options2"])
@pytest.mark.parametrize(
    "options",
    [
        ["--precision", "bf16"],
        ["--model", "convnet", "--image-size", "12"],
        ["--optimizer", "sgd", "--clip-norm", "1", "--augment", "flip"],
        ["--scale-lr", "True", "--reference-batch", "8", "--deterministic", "True"],
    ],
)
def test_variants_train(alone, tmp_path, options):
    try:
        alone(*once([*SMALL, *options]))
    finally:
        torch.use_deterministic_algorithms(False)
    losses = [record["train_loss"] for record in epochs(tmp_path / "alone")]
    assert losses[1] < losses[0]


def test_bf16_computes_in_bf16_and_stays_near_fp32(alone, tmp_path):
    alone(*SMALL, base=tmp_path / "full")
    alone(*SMALL, "--precision", "bf16", base=tmp_path / "half")
    full, half = (epochs(tmp_path / name)[-1]["train_loss"] for name in ("full", "half"))
    assert half != full
    assert half == pytest.approx(full, rel=0.05)
    weights = torch.load(tmp_path / "half" / "model" / "model.pt", weights_only=True)
    assert all(tensor.dtype == torch.float32 for tensor in weights.values())


@pytest.mark.slow
def test_more_epochs_go_on_and_metrics_are_not_doubled(alone, tmp_path):
    alone(*SMALL, "--gamma", "1")
    alone(*once([*SMALL, "--epochs", "3", "--gamma", "1"]))
    assert [record["epoch"] for record in epochs(tmp_path / "alone")] == [1, 2, 3]
    alone(*once([*SMALL, "--epochs", "3", "--gamma", "1"]), base=tmp_path / "whole")
    assert epochs(tmp_path / "alone")[2]["val_loss"] == epochs(tmp_path / "whole")[2]["val_loss"]


class StopAtPoll:
    """Agrees on a stop at the `number`-th question, be it after a step or in the middle of an evaluation."""

    def __init__(self, number: int) -> None:
        self.left = number

    def poll(self, save_due: bool = False) -> StopVerdict:
        self.left -= 1
        return StopVerdict(stop=self.left == 0)


@pytest.mark.slow
def test_a_stop_at_any_moment_ends_bit_identical_once_resumed(alone, tmp_path, monkeypatch):
    folder = write_images(tmp_path / "train", ["a", "b"], 20)
    args = [*once([*SMALL, "--epochs", "2", "--batch-size", "2", "--accumulation", "4"]), "--train", str(folder)]
    args += ["--dropout", "0.2", "--log-interval", "2"]
    alone(*args, base=tmp_path / "whole")
    whole = torch.load(tmp_path / "whole" / "model" / "model.pt", weights_only=True)
    polls = 2 * (5 + 4)  # per epoch: 5 steps of 8 of the 36 images, 4 images to evaluate as 4 accumulation passes
    for number in range(1, polls + 1):
        base = tmp_path / f"stop{number}"
        with monkeypatch.context() as patch:
            patch.setattr("algorun_train.jobs.skeleton.Agreement", lambda *_, number=number: StopAtPoll(number))
            assert "stopped on request" in alone(*args, base=base)
        assert "resumed" in alone(*args, base=base)
        again = torch.load(base / "model" / "model.pt", weights_only=True)
        assert all(torch.equal(again[name], whole[name]) for name in whole)
        assert [r["val_loss"] for r in epochs(base)] == [r["val_loss"] for r in epochs(tmp_path / "whole")]
        train_losses = [r["train_loss"] for r in epochs(tmp_path / "whole")]
        assert [r["train_loss"] for r in epochs(base)] == pytest.approx(train_losses, rel=1e-12)


def test_tensorboard_has_the_curves(alone, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    alone(*SMALL, "--log-interval", "30")
    events = EventAccumulator(str(tmp_path / "alone" / "output" / "data" / "tensorboard"))
    events.Reload()
    assert len(events.Scalars("epoch/val_accuracy")) == 2
    steps = [event.step for event in events.Scalars("step/learning_rate")]
    assert steps == list(range(30, steps[-1] + 1, 30))


def test_a_checkpoint_with_another_seed_is_refused(alone):
    alone(*SMALL)
    with pytest.raises(UserError, match=r"seed is 0 there, 1 here.*--resume never"):
        alone(*SMALL, "--seed", "1")


def test_a_user_error_is_one_line_and_code_64(tmp_path):
    done = run(tmp_path, "--epoch", "3")
    assert done.returncode == 64
    assert done.stderr.splitlines() == [
        "error: unknown option --epoch from the command line; fix: did you mean --epochs?"
    ]


def test_help(tmp_path):
    done = run(tmp_path, "--help")
    assert done.returncode == 0
    assert "--accumulation" in done.stdout


STOPPED_WHILE_LOADING = """
import importlib.abc, os, runpy, signal, sys
class Stop(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGTERM)
assert not any(name.partition(".")[0] == "torch" for name in sys.modules)
sys.meta_path.insert(0, Stop())
sys.argv = ["ddp", *sys.argv[1:]]
runpy.run_module("algorun_train.jobs.{}", run_name="__main__", alter_sys=True)
"""


# The stop is the same in `pipeline`.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "options"),
    [("ddp", SMALL), ("pipeline", ["--width", "16", "--depth", "1", "--context", "16", "--batch-size", "2"])],
)
def test_a_stop_while_torch_is_imported_is_not_lost(tmp_path, job, options):
    command = [sys.executable, "-u", "-c", STOPPED_WHILE_LOADING.replace("{}", job)]
    command += once([*options, "--epochs", "500"])
    environ = clean_environ(tmp_path / "ml")
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "stopped on request after step 1;" in done.stdout
    assert (tmp_path / "ml" / "checkpoints" / "step-00000001").is_dir()
