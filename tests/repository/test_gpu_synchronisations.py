"""How `make test PART=gpu` counts waits for the GPU inside a step and elsewhere."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from tests.gpu.programs.count_synchronisations import Watch, copied


def at(*functions: tuple[str, str]):
    """A function that warns of a synchronisation when it is called, by way of these (file, function), the first outermost."""
    call = lambda: warnings.warn("called a synchronizing CUDA operation (Triggered ..)", stacklevel=1)  # noqa: E731
    for file, name in reversed(functions):
        names = {"call": call}
        exec(compile(f"def {name}():\n    call()\n", f"/src/{file}", "exec"), names)
        call = names[name]
    return call


def watched(steps: int, *places: tuple[str, str]) -> Watch:
    watch = Watch()
    watch.steps = steps
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = watch.show
        at(*places)()
    return watch


EPOCH = ("train/algorun_train/loop/training_loop.py", "_train_epoch")


@pytest.mark.parametrize(
    ("places", "counted"),
    [
        ([EPOCH, ("train/algorun_train/loop/data_parallel_steps.py", "step")], (1, 0)),
        (
            [
                EPOCH,
                ("train/algorun_train/data/__init__.py", "training"),
                ("train/algorun_train/data/augment.py", "__call__"),
            ],
            (1, 0),
        ),
        (
            [
                EPOCH,
                ("train/algorun_train/loop/training_loop.py", "_report_step"),
                ("train/algorun_train/loop/meter.py", "fold"),
            ],
            (0, 1),
        ),
        ([EPOCH, ("train/algorun_train/loop/meter.py", "fold")], (0, 1)),
        (
            [
                EPOCH,
                ("train/algorun_train/loop/training_loop.py", "_agree"),
                ("train/algorun_train/loop/training_loop.py", "_save"),
            ],
            (0, 1),
        ),
        (
            [
                EPOCH,
                ("train/algorun_train/loop/training_loop.py", "_agree"),
                ("launcher/algorun/inside/stop_agreement.py", "poll"),
            ],
            (1, 0),
        ),
        ([("train/algorun_train/loop/training_loop.py", "_evaluate")], (0, 1)),
        ([("train/algorun_train/loop/data_parallel_steps.py", "warm_up")], (0, 1)),
    ],
)
def test_only_a_wait_inside_a_step_counts_as_one(places, counted):
    watch = watched(10, *places)
    assert (watch.in_steps, watch.elsewhere) == counted
    ours = [Path(file).name for file, _ in places if file.startswith("train/")]
    assert list(watch.places) == ([f"{ours[-1]}:2"] if watch.in_steps else [])


def test_the_first_steps_may_wait():
    watch = watched(2, EPOCH)
    assert (watch.in_steps, watch.elsewhere) == (0, 0)


def test_copies_that_are_not_from_pinned_memory_are_counted():
    names = [
        "Memcpy HtoD (Pageable -> Device)",
        "Memcpy HtoD (Pinned -> Device)",
        "Memset (Device)",
        "Memcpy DtoH (Device -> Pageable)",
    ]
    assert copied(names) == (3, 2)
