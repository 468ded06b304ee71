"""Ranks as processes: the result does not depend on their layout, an interrupted run ends like an uninterrupted one."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from algorun_train.checkpoint.shards import ShardStore
from tests.train.training_runs import ROOT, SMALL, Ranks, clean_environ, epochs, once, write_images

# Plain gradients for comparisons: Adam turns rounding errors of gradients that are zero into whole steps.
PLAIN = [*SMALL, "--optimizer", "sgd", "--lr", "0.05"]


def weights(base):
    return torch.load(base / "model" / "model.pt", weights_only=True)


def equal(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def close(one, two):
    return one.keys() == two.keys() and all(torch.allclose(one[n], two[n], rtol=1e-3, atol=1e-4) for n in one)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """What four ranks on one host arrive at, with 16 images per rank and step."""
    base = tmp_path_factory.mktemp("four")
    run = Ranks(base, 1, 4, PLAIN)
    try:
        assert run.codes() == [0, 0, 0, 0], run.text()
    finally:
        run.kill()
    return base / "host0"


# `make test` compares layouts that share the state, in test_ddp_sharded.py.
@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "slots"), [(2, 2), (4, 1)])
def test_layouts_give_the_same_losses_and_weights(ranks, four, hosts, slots):
    run = ranks(hosts, slots, *PLAIN)
    assert run.codes() == [0, 0, 0, 0], run.text()
    for ours, theirs in zip(epochs(run.base / "host0"), epochs(four), strict=True):
        assert (ours["train_loss"], ours["val_loss"]) == (theirs["train_loss"], theirs["val_loss"])
    assert equal(weights(run.base / "host0"), weights(four))
    for host in range(1, hosts):  # one writer
        assert not list((run.base / f"host{host}").rglob("*.*"))


@pytest.mark.slow(but=["options0"])
@pytest.mark.parametrize("options", [["--batch-size", "64"], ["--accumulation", "4"]])
def test_one_rank_with_the_fourfold_batch_equals_four_ranks(alone, four, tmp_path, options):
    text = alone(*once([*PLAIN, *options]))
    assert "global batch: 64" in text
    for ours, theirs in zip(epochs(tmp_path / "alone"), epochs(four), strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-4)
        assert ours["val_loss"] == pytest.approx(theirs["val_loss"], rel=1e-3)
    assert close(weights(tmp_path / "alone"), weights(four))


def test_accumulation_over_two_ranks_equals_the_large_batch(ranks, four):
    run = ranks(1, 2, *PLAIN, "--accumulation", "2")
    assert run.codes() == [0, 0], run.text()
    for ours, theirs in zip(epochs(run.base / "host0"), epochs(four), strict=True):
        assert ours["val_loss"] == pytest.approx(theirs["val_loss"], rel=1e-3)


LONG = [*SMALL, "--epochs", "3", "--log-interval", "1", "--dropout", "0.1", "--clip-norm", "1"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Where a long run of two ranks ends that nobody disturbs."""
    base = tmp_path_factory.mktemp("uninterrupted")
    run = Ranks(base, 2, 1, once(LONG))
    try:
        assert run.codes() == [0, 0], run.text()
    finally:
        run.kill()
    return base / "host0"


def newest(base):
    """The file of the newest checkpoint of `base`, which has one shard."""
    store = ShardStore(base / "checkpoints", 1)
    return store.path(max(store.found()[0], key=lambda shard: shard.save))


def state(base):
    return torch.load(newest(base), weights_only=True)


def same_state(one, two):
    moments = [s["optimizer"] for s in (one, two)]
    return (
        equal(one["model"], two["model"])
        and one["position"] == two["position"]
        and all(equal(moments[0][k], moments[1][k]) for k in moments[0])
        and moments[0].keys() == moments[1].keys()
    )


# `make test` kills it instead, below.
@pytest.mark.slow
def test_a_stop_on_one_rank_saves_once_and_the_resumed_run_ends_bit_identical(ranks, uninterrupted):
    run = ranks(2, 1, *once(LONG), hold="step: 60/")
    run.wait_for("step: 60/")  # in the second epoch of 45 steps
    run.signal(signal.SIGTERM, ranks=[1])
    assert run.codes() == [0, 0], run.text()
    base = run.base / "host0"
    position = state(base)["position"]
    assert 0 < position["samples"] <= 1438  # all of them: an epoch that waits for its evaluation
    assert f"stopped on request after step {position['step']}" in run.text()
    assert not (base / "output" / "data" / "summary.json").exists()
    assert not (base / "model" / "model.pt").exists()

    again = ranks(2, 1, *once(LONG), base=run.base)
    assert again.codes() == [0, 0], again.text()
    assert f"step {position['step']}\n" in again.text()
    assert same_state(state(base), state(uninterrupted))
    assert equal(weights(base), weights(uninterrupted))
    for ours, theirs in zip(epochs(base), epochs(uninterrupted), strict=True):
        assert ours["val_loss"] == theirs["val_loss"]
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-12)


def test_after_a_kill_and_a_torn_checkpoint_the_run_still_ends_bit_identical(ranks, uninterrupted):
    often = [*once(LONG), "--checkpoint-interval-s", "0.001", "--keep-checkpoints", "3"]
    run = ranks(2, 1, *often, hold="step: 80/")
    run.wait_for("step: 80/")
    run.signal(signal.SIGKILL)
    run.codes()
    base = run.base / "host0"
    torn = newest(base)
    os.truncate(torn, 1000)

    again = ranks(2, 1, *once(LONG), base=run.base)
    assert again.codes() == [0, 0], again.text()
    assert f"warning: checkpoint {torn.parent} is damaged on rank 0's host: {torn.name} has 1000 bytes" in again.text()
    assert "resumed: " in again.text()
    assert equal(weights(base), weights(uninterrupted))


def test_resuming_on_fewer_ranks_goes_on_with_the_samples_that_are_left(ranks, alone):
    run = ranks(1, 2, *SMALL, "--log-interval", "1", hold="step: 20/")
    run.wait_for("step: 20/")
    run.signal(signal.SIGTERM)
    assert run.codes() == [0, 0], run.text()
    base = run.base / "host0"
    text = alone(*SMALL, base=base)
    done = state(base)["position"]
    assert "resumed: " in text
    assert (done["epoch"], done["samples"]) == (2, 0)
    assert len(epochs(base)) == 2


def test_a_bad_image_is_one_error_on_all_ranks(ranks, tmp_path):
    root = write_images(tmp_path / "train", ["a", "b"], 6)
    (root / "b" / "3.png").write_bytes(b"no image")
    run = ranks(1, 2, *SMALL, SM_CHANNEL_TRAIN=str(root))
    assert run.codes() == [64, 64]
    last = [run.text(rank).splitlines()[-1] for rank in (0, 1)]
    assert last[0] == last[1]
    assert last[0].startswith(f"error: channel 'train': {root}/b/3.png is a corrupt image")
    assert "Traceback" not in run.text(0) + run.text(1)


def test_a_checkpoint_of_another_job_is_one_error_on_all_ranks(ranks, alone, tmp_path):
    base = tmp_path / "run0" / "host0"
    base.parent.mkdir()
    alone(*SMALL, base=base)
    run = ranks(1, 2, *once([*SMALL, "--depth", "2"]), base=tmp_path / "run0")
    assert run.codes() == [64, 64]
    assert "depth is 1 there, 2 here" in run.text(1).splitlines()[-1]


# test_simulate.py: ranks get what bare torchrun gives them.
@pytest.mark.slow
def test_torchrun_starts_it(tmp_path):
    command = ["torchrun", "--standalone", "--nproc-per-node", "2", "-m", "algorun_train.jobs.ddp", *SMALL]
    command[0] = os.path.join(os.path.dirname(sys.executable), "torchrun")
    environ = clean_environ(tmp_path / "ml") | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "global batch: 32 = 16 per rank x 2 ranks" in done.stdout
    assert (tmp_path / "ml" / "model" / "model.pt").is_file()


def test_a_loss_that_is_no_number_ends_all_ranks_with_an_error(ranks):
    args = once([*SMALL, "--optimizer", "sgd", "--lr", "1e30", "--log-interval", "5"])
    run = ranks(1, 2, *args)
    assert run.codes() == [1, 1]
    assert "TrainingError: the training loss became nan" in run.text(0)
    assert not list((run.base / "host0" / "checkpoints").glob("step-*"))


@pytest.mark.slow
def test_an_artifact_may_take_longer_than_a_collective(ranks):
    run = ranks(1, 2, *PLAIN, program=str(ROOT / "tests" / "train" / "programs" / "slow_artifact.py"))
    assert run.codes() == [0, 0], run.text(1)
    assert "artifact: " in run.text()
