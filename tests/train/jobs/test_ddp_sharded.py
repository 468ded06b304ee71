"""`ddp`, `ddp --shard` and `pipeline`: any layout goes on from any other's checkpoint; the artifact is the whole model."""

import functools
import io
import os
import re
import shutil

import pytest
import torch

from algorun_train.checkpoint.shards import ShardStore, model_state
from algorun_train.common.errors import UserError
from algorun_train.jobs import check
from tests.train import old_checkpoints
from tests.train.training_runs import DDP, SMALL, Ranks, epochs

PIPELINE = "algorun_train.jobs.pipeline"
ARGS = [*SMALL, "--clip-norm", "1", "--log-interval", "1"]
VIT = ["--model", "vit"]
# name: hosts, ranks per host, options. 64 images a step in all of them.
LAYOUTS = {
    "alone": (1, 1, ["--batch-size", "64"]),
    "dp4": (1, 4, []),
    "shard4": (4, 1, ["--shard", "all"]),
    "shard2x2": (2, 2, ["--shard", "2", "--recompute", "True"]),
    "pp2xdp2": (2, 2, [*VIT, "--pp", "2", "--batch-size", "32"]),
    "pp4": (4, 1, [*VIT, "--pp", "4", "--batch-size", "64"]),
    "pp2xshard2": (2, 2, [*VIT, "--pp", "2", "--shard", "all", "--batch-size", "32"]),
}


def run(base, layout, epochs, *options):
    hosts, slots, own = LAYOUTS[layout]
    args = [*ARGS, *own, "--epochs", str(epochs), *options]
    words = dict(zip(args[::2], args[1::2], strict=True))
    program = PIPELINE if layout.startswith("pp") else DDP
    ranks = Ranks(base, hosts, slots, [word for pair in words.items() for word in pair], program)
    try:
        assert ranks.codes() == [0] * (hosts * slots), ranks.text()
        return ranks.text()
    finally:
        ranks.kill()


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """For a layout the folder of a run of one epoch; it lies in `first` as well."""

    @functools.cache
    def made(layout):
        base = tmp_path_factory.mktemp(layout)
        run(base, layout, 1)
        shutil.copytree(base, base / "first")
        return base

    return made


def united(base, to):
    """The checkpoints of all hosts in one folder, as SageMaker copies them to the hosts of the next job."""
    for folder in base.glob("host*/checkpoints/step-*"):
        shutil.copytree(folder, to / folder.name, dirs_exist_ok=True)
    return to


# `make test` has one process that reads the checkpoint of shares; test_pipeline_folders.py has that of stages.
@pytest.mark.slow(but=["alone", "shard4"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_trains_to_the_same_loss_and_writes_whole_tensors_by_name(straight, tmp_path, layout):
    base = straight(layout)
    one, end = (epochs(folder / "host0")[-1] for folder in (straight("alone"), base))
    assert end["train_loss"] == pytest.approx(one["train_loss"], rel=1e-4)
    assert end["val_loss"] == pytest.approx(one["val_loss"], rel=1e-3)
    artifact = torch.load(base / "host0" / "model" / "model.pt", weights_only=True)
    saved = model_state(united(base, tmp_path / layout))
    assert artifact.keys() == saved.keys()
    assert all(torch.equal(artifact[name], saved[name]) for name in saved)


# `make test` has a checkpoint that four shares read.
@pytest.mark.slow
def test_each_rank_of_the_first_replica_writes_its_share_on_its_own_host(straight):
    def files(layout, host):
        folder = straight(layout) / f"host{host}" / "checkpoints"
        return [shard.number for shard in ShardStore(folder, 1).found()[0]]

    assert [files("shard4", host) for host in range(4)] == [[0], [1], [2], [3]]
    assert [sorted(files("shard2x2", host)) for host in range(2)] == [[0, 1], []]
    assert [sorted(files("pp2xshard2", host)) for host in range(2)] == [[0, 2], [1, 3]]
    sizes = [os.path.getsize(file) for file in straight("shard4").glob("host*/checkpoints/*/*.pt")]
    assert max(sizes) < 1.5 * min(sizes)


@pytest.mark.slow
# How a checkpoint was written and how it is read are independent: each layout writes one and reads one.
@pytest.mark.parametrize(
    ("wrote", "reads"),
    [
        ("shard2x2", "alone"),
        ("alone", "pp4"),
        ("pp4", "pp2xshard2"),
        ("pp2xshard2", "dp4"),
        ("shard4", "pp2xdp2"),
        ("pp2xdp2", "shard2x2"),
    ],
)
def test_a_layout_goes_on_from_another_s_checkpoint(straight, tmp_path, wrote, reads):
    for host in range(LAYOUTS[reads][0]):
        united(straight(wrote) / "first", tmp_path / f"host{host}" / "checkpoints")
    text = run(tmp_path, reads, 2)
    assert "resumed: " in text
    expected = straight_on(straight)
    assert epochs(tmp_path / "host0")[-1]["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-3)


def straight_on(straight):
    """The second epoch of one process that goes on from its own checkpoint."""
    base = straight("alone")
    if not (base / "on").exists():
        shutil.copytree(base / "first" / "host0", base / "on" / "host0")
        run(base / "on", "alone", 2)
    return epochs(base / "on" / "host0")[-1]


@pytest.mark.slow
def test_the_same_layout_resumes_bit_identical_and_a_torn_shard_is_passed_over(straight, tmp_path):
    base = straight("shard2x2")
    shutil.copytree(base / "first", tmp_path / "one")
    run(tmp_path / "one", "shard2x2", 2)
    shutil.copytree(base / "first", tmp_path / "two", ignore=shutil.ignore_patterns("first"))
    run(tmp_path / "two", "shard2x2", 2)
    one, two = (torch.load(tmp_path / b / "host0" / "model" / "model.pt", weights_only=True) for b in ("one", "two"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    torn = max((tmp_path / "two" / "host0" / "checkpoints").glob("step-*/part-0001-of-0002.pt"))
    os.truncate(torn, 1000)
    text = run(tmp_path / "two", "shard2x2", 2)
    assert f"damaged on rank 1's host: {torn.name} has 1000 bytes" in text
    assert "is passed over" in text
    assert epochs(tmp_path / "two" / "host0")[-1] is not None
    again = torch.load(tmp_path / "two" / "host0" / "model" / "model.pt", weights_only=True)
    assert all(torch.equal(one[name], again[name]) for name in one)


@pytest.mark.slow
def test_a_torn_shard_of_a_stage_makes_ddp_take_the_older_checkpoint(straight, tmp_path):
    shutil.copytree(straight("pp2xdp2") / "first", tmp_path / "stages")
    run(tmp_path / "stages", "pp2xdp2", 2)
    saved = united(tmp_path / "stages", tmp_path / "one" / "host0" / "checkpoints")
    torn, older = max(saved.glob("step-*/part-0001-of-0002.pt")), min(saved.glob("step-*"))
    os.truncate(torn, 1000)
    text = run(tmp_path / "one", "alone", 2)
    assert f"damaged on rank 0's host: {torn.name} has 1000 bytes" in text
    assert f"resumed: {older}, epoch 2" in text
    expected = straight_on(straight)
    assert epochs(tmp_path / "one" / "host0")[-1]["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-3)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--shard", "3"], "option --shard: 3 does not divide the 4 ranks; allowed: 1, 2, 4, all"),
        (["--shard", "0"], "option --shard: '0'; allowed: a divisor of the number of ranks, or all"),
        (["--shard", "half"], "option --shard: 'half'; allowed: a divisor of the number of ranks, or all"),
        (["--shard", "2", "--compile", "True"], "option --compile: with --shard 2; allowed: with --shard 1"),
    ],
)
def test_what_cannot_be_sharded_is_refused_before_any_rank_starts(words, text, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("4\n"))
    with pytest.raises(UserError, match=re.escape(text)):
        check.main(["ddp", *words])


@pytest.mark.slow
def test_a_checkpoint_of_version_0_1_0_is_read_into_shares(straight, tmp_path):
    saved = torch.load(next((straight("alone") / "first").glob("host0/checkpoints/*/*.pt")), weights_only=True)
    names = [name for name in saved["model"] if saved["model"][name].dim() > 1]  # the order of the optimizer's groups
    names += [name for name in saved["model"] if saved["model"][name].dim() <= 1]
    moments = {number: saved["optimizer"][name] for number, name in enumerate(names)}
    old = saved | {"optimizer": {"state": moments, "param_groups": []}}
    old_checkpoints.save(tmp_path / "host0" / "checkpoints", saved["position"]["step"], old)
    assert "resumed: " in run(tmp_path, "shard4", 2)
    expected = straight_on(straight)
    assert epochs(tmp_path / "host0")[-1]["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-3)
