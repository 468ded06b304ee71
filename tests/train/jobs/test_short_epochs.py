"""A job whose data is too small for its batch says so."""

import pytest

from algorun_train.data.sampler import Batching
from algorun_train.jobs.skeleton import short_epoch
from tests.train.training_runs import DDP, Ranks, write_images

PIPELINE = "algorun_train.jobs.pipeline"

SMALL_VIT = ("--width", "16", "--depth", "1", "--heads", "2", "--log-interval", "1")


def test_an_epoch_of_one_step_is_named_with_its_numbers_and_what_helps():
    assert short_epoch(36, "images", Batching(32, 1, 0, 4), "rank") == (
        "warning: an epoch is 1 step: 36 training images, and a global batch of 128 (32 per rank x 4 ranks); "
        "2 of the 4 ranks have no image; fix: a smaller --batch-size, fewer ranks, or more data"
    )
    assert short_epoch(16, "sequences", Batching(4, 2, 0, 2), "rank") == (
        "warning: an epoch is 1 step: 16 training sequences, and a global batch of 16 (4 per rank x 2 ranks x 2 passes); "
        "fix: a smaller --batch-size or --accumulation, fewer ranks, or more data"
    )
    assert short_epoch(2, "images", Batching(8, 1, 0, 2), "pipeline") == (
        "warning: an epoch is 1 step: 2 training images, and a global batch of 16 (8 per pipeline x 2 pipelines); "
        "1 of the 2 pipelines has no image; fix: a smaller --batch-size, fewer pipelines, or more data"
    )
    assert short_epoch(1, "images", Batching(8, 1, 0, 1), "rank") == (
        "warning: an epoch is 1 step: 1 training image, and a global batch of 8 (8 per rank x 1 rank); "
        "fix: a smaller --batch-size, or more data"
    )


@pytest.mark.parametrize("batching", [Batching(8, 1, 0, 4), Batching(4, 4, 0, 2), Batching(1, 1, 0, 1)])
def test_two_steps_an_epoch_are_no_warning(batching):
    assert short_epoch(batching.global_batch + 1, "images", batching, "rank") is None


def test_no_sample_is_counted_for_a_rank_that_has_none():
    """The same ranks as those that `take` gives samples."""
    import numpy as np

    from algorun_train.data.sampler import take

    for count in range(1, 25):
        idle = sum(
            not any(piece.valid for piece in take(np.arange(count), 0, Batching(3, 2, replica, 4)).pieces)
            for replica in range(4)
        )
        said = short_epoch(count, "images", Batching(3, 2, 0, 4), "rank")
        assert (f"{idle} of the 4 ranks" in said) == (idle > 0), (count, idle, said)


@pytest.mark.slow
def test_two_ranks_of_a_job_print_it_once(tmp_path):
    folder = write_images(tmp_path / "train", ["a", "b"], 10)
    begin = "warning: an epoch is 1 step: 18 training images, and a global batch of 128 (64 per "
    jobs = {"rank": (DDP, ["--epochs", "2"]), "pipeline": (PIPELINE, ["--model", "vit", "--pp", "1", "--epochs", "2"])}
    for replica, (program, options) in jobs.items():
        args = ["--train", str(folder), *SMALL_VIT, "--batch-size", "64", *options]
        run = Ranks(tmp_path / replica, 1, 2, args, program)
        try:
            assert run.codes() == [0, 0], run.text()
        finally:
            run.kill()
        assert [run.text(rank).count(f"{begin}{replica} x 2 {replica}s)") for rank in (0, 1)] == [1, 0]
