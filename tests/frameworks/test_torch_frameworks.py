"""Frameworks on top of torch: they find torchrun's variables in a rank."""

from __future__ import annotations

import itertools
import re

import pytest

from tests.conftest import ENGINES

from . import published
from .conftest import LAUNCHER_PROGRAMS, PROGRAMS
from .digits import write_photos

pytestmark = pytest.mark.slow
FRAMEWORK = "torch"
PHOTOS = 355
EVALUATED = 71  # cv_example.py trains on four of five photos


@pytest.mark.parametrize("engine", ENGINES)
def test_accelerates_own_script(engine, run):
    """What `accelerate test` starts. With four processes it fails under bare torchrun as well: its data has two rows."""
    done = run(engine, "2x1", "-m", "accelerate.test_utils.scripts.test_script", ACCELERATE_USE_CPU="true")
    assert done.code == 0, done.text
    assert len(re.findall(r"^\[\d \S+\] Distributed environment: DistributedType.MULTI_CPU", done.out, re.M)) == 2
    assert len(re.findall(r"^\[\d \S+\] Num processes: 2$", done.out, re.M)) == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_an_example_of_accelerate(engine, run, script):
    """cv_example.py, with digits as photos in the folder that it takes, and a small model in place of a pretrained one."""
    example = script(published.ACCELERATE_CV, "cv_example.py")
    write_photos(script.folder / "photos", PHOTOS)
    program = (PROGRAMS / "with_digits.py", "timm", example.name)
    done = run(engine, "2x2", *program, "--data_dir", "photos", ACCELERATE_USE_CPU="true")
    assert done.code == 0, done.text
    found = re.findall(r"^\[(\d) \S+\] epoch (\d): (\S+)$", done.out, re.M)
    assert sorted((rank, epoch) for rank, epoch, _ in found) == list(
        itertools.product("02", "012")
    )  # a line for each host
    percent = {rank: [float(each) for printed, _, each in found if printed == rank] for rank in "02"}
    assert percent["0"] == percent["2"]
    right = [each * EVALUATED / 100 for each in percent["0"]]
    assert right == pytest.approx([round(each) for each in right], abs=0.01)  # photos of all ranks, each counted once
    assert max(right) > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_lightning_takes_hosts_and_ranks_from_its_trainer(engine, run, script):
    """The first script of its guide to the command line."""
    main = script(published.LIGHTNING_CLI, "main.py", "# main.py")
    trainer = "--trainer.accelerator cpu --trainer.devices 2 --trainer.num_nodes 2 --trainer.strategy ddp"
    short = "--trainer.max_epochs 1 --trainer.enable_progress_bar false --trainer.logger false"
    done = run(engine, "2x2", main.name, "fit", *trainer.split(), *short.split())
    assert done.code == 0, done.text
    ranks = re.findall(r"Initializing distributed: GLOBAL_RANK: (\d), MEMBER: \d/4", done.text)
    assert sorted(ranks) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_example_of_fabric_takes_hosts_and_ranks_from_variables(engine, run, script):
    """The image classifier, with scikit-learn's digits. `fabric run` sets these variables from its options."""
    train = script(published.FABRIC_MNIST, "train_fabric.py")
    cli = {"LT_CLI_USED": "1", "LT_ACCELERATOR": "cpu", "LT_STRATEGY": "ddp", "LT_NUM_NODES": "2", "LT_DEVICES": "1"}
    done = run(engine, "2x1", PROGRAMS / "with_digits.py", "torchvision", train.name, "--epochs", 1, **cli)
    assert done.code == 0, done.text
    assert len(re.findall(r"Initializing distributed: GLOBAL_RANK: \d, MEMBER: \d/2", done.text)) == 2
    losses = re.findall(r"^\[(\d) \S+\] Test set: Average loss: (\S+), Accuracy: \(\d+%\)$", done.out, re.M)
    assert sorted(rank for rank, _ in losses) == ["0", "1"]
    assert len({loss for _, loss in losses}) == 1


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("loss", "the loss is nan"),
        ("gradient", "the gradient of model.last.weight is nan"),
        ("overflow", "the loss is inf"),
        ("weight", "the weight model.last.weight has become nan in step 3"),
    ],
)
def test_what_becomes_nan_under_lightning_has_its_rank_step_and_parameter(what, named, run):
    """Lightning computes loss and gradients in a closure of the optimizer's step."""
    done = run("native", "2x2", LAUNCHER_PROGRAMS / "nonfinite_trainer.py", "lightning", what, 2, 3)
    assert done.code == 0, done.text
    found = re.findall(r"^algorun: warning: first value that is not finite: (.*)$", done.out, re.M)
    assert found == [f"step 3, rank 2 on algo-2: {named}"] * 2  # one of each host
