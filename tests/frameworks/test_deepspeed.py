"""DeepSpeed on two hosts, over Gloo: its own example, and each stage of ZeRO on 2 x 2 ranks, with offload too."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ENGINES, needs_mpi

from . import published
from .conftest import PROGRAMS
from .environments import EXTENSIONS

pytestmark = pytest.mark.slow
FRAMEWORK = "deepspeed"


def train(engine, stage, run, script):
    """cifar10_deepspeed.py, with scikit-learn's digits: 93 steps of 16 images, and its own test at the end."""
    program = script(published.DEEPSPEED_CIFAR, "cifar10_deepspeed.py")
    options = ("--dtype", "fp32", "--epochs", 1, "--log-interval", 30, "--stage", stage)
    done = run(engine, "2x1", PROGRAMS / "with_digits.py", "torchvision", program.name, *options, **EXTENSIONS)
    assert done.code == 0, done.text
    assert len(re.findall(r"^\[\d \S+\] Finished Training$", done.out, re.M)) == 2
    losses = re.findall(r"^\[\d \S+\] \[ 1, +(?:30|60|90)\] loss: +(\S+)$", done.out, re.M)
    assert len(losses) == 6  # the first rank of each host prints: the losses of its own images
    assert len(re.findall(r"Accuracy of the network on the 296 test images", done.out)) == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_the_example_for_cifar(engine, run, script):
    train(engine, 1, run, script)


@pytest.mark.parametrize("stage", [2, 3])
def test_the_example_for_cifar_with_other_stages_of_zero(stage, run, script):
    train("native", stage, run, script)


@pytest.mark.parametrize(
    ("engine", "stage", "offload"),
    [
        *((engine, 1, False) for engine in ("native", "torchrun")),
        pytest.param("mpirun", 1, False, marks=needs_mpi),
        *(("native", stage, offload) for stage, offload in ((2, False), (3, False), (1, True), (2, True), (3, True))),
    ],
)
def test_four_ranks_find_the_weights_of_one_process(engine, stage, offload, run):
    done = run(
        engine, "2x2", PROGRAMS / "fit_with_deepspeed.py", stage, *(["offload"] if offload else []), **EXTENSIONS
    )
    assert done.code == 0, done.text
    optimizers, found = zip(*re.findall(r"^\[\d \S+\] optimizer (\S+) weights (.*)$", done.out, re.M), strict=True)
    assert set(optimizers) == {"DeepSpeedCPUAdam" if offload else "FusedAdam"}
    expected = re.findall(r"^\[\d \S+\] alone weights (.*)$", done.out, re.M)
    assert len(found) == len(expected) == 4
    for ours, alone in zip(found, expected, strict=True):
        assert list(map(float, ours.split())) == pytest.approx(list(map(float, alone.split())), abs=1e-4)
