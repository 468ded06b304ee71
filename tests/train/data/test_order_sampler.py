"""algorun.data: each sample exactly once, whatever is killed and however many ranks and workers go on."""

import functools
import random
import textwrap

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from algorun import data as door
from algorun.data import StepSampler, UserError
from algorun_train.data import order_files
from algorun_train.data.sampler import permutation
from tests.train.data.sampler_ledger import Ledger, carry_out, missing_and_double, random_schedule
from tests.train.training_runs import ROOT


# The first 100 are in `make test`.
@pytest.mark.slow(but=["100"])
@pytest.mark.parametrize("schedules", [100, 1000])
def test_random_schedules_of_kills_layouts_and_workers_train_on_each_sample_once(schedules, monkeypatch):
    """The ranks of a schedule are in one process: what each of them computes anew is computed once."""
    monkeypatch.setattr(order_files, "permutation", functools.cache(permutation))
    kills = 0
    for number in range(schedules):
        files, epochs, runs = random_schedule(random.Random(number))
        ledger = Ledger()
        for run in runs:
            if carry_out(run, files, epochs, seed=number, ledger=ledger):
                break
            kills += 1
        assert missing_and_double(files, epochs, ledger) == (0, 0), number
    assert kills > schedules


@pytest.mark.parametrize("workers", [0, 2])
def test_the_position_of_a_real_dataloader_is_what_was_received(workers):
    """Workers read 4 batches ahead."""
    data = TensorDataset(torch.arange(37))
    seen = []
    sampler = StepSampler(data, batch_size=4, seed=3)
    for (batch,) in sampler.counted(DataLoader(data, batch_sampler=sampler, num_workers=workers)):
        seen += batch.tolist()
        if len(seen) == 12:
            state = sampler.state_dict()
            break
    assert state["files"] == {"": [37, 12]}
    other = StepSampler(data, batch_size=5, seed=99)
    other.load_state_dict(state)
    assert (other.position, other.seed, len(other)) == (12, 3, 5)
    for epoch in other.epochs(1):
        assert epoch == 0
        for (batch,) in other.counted(DataLoader(data, batch_sampler=other)):
            seen += batch[: other.valid].tolist()
    assert sorted(seen) == list(range(37))


def test_a_resumed_run_of_the_same_layout_takes_the_same_batches():
    def files():
        return StepSampler(30, 4, seed=1, files={"b": 13, "a": 17})

    whole = files()
    batches = list(whole.counted(whole))
    first = files()
    taken = []
    for batch in first.counted(first):
        taken.append(batch)
        if len(taken) == 3:
            break
    second = files()
    second.load_state_dict(first.state_dict())
    assert taken + list(second.counted(second)) == batches
    assert second.epoch == 1
    assert list(second.counted(second)) != batches  # another epoch, another order


def test_drop_leaves_out_what_fills_no_step(capsys):
    sampler = StepSampler(11, 4, last="drop")
    assert [sampler.valid for _ in sampler.counted(sampler)] == [4, 4]
    assert "3 samples that fill no step are left out" in capsys.readouterr().out
    padded = StepSampler(11, 4)
    assert [(padded.valid, padded.total) for _ in padded.counted(padded)] == [(4, 4), (4, 4), (3, 3)]
    assert "1 places of an epoch's batches are filled" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"batch_size": 0}, "batch_size=0; allowed: a whole number from 1"),
        ({"dataset": 0}, "a dataset without samples or without a length"),
        ({"dataset": iter(())}, "a dataset without samples or without a length"),
        ({"seed": -1}, "seed=-1; allowed: a whole number from 0 to"),
        ({"last": "keep"}, "last='keep'; allowed: 'pad', 'drop'"),
        ({"rank": 2, "replicas": 2}, "rank=2 of replicas=2"),
        ({"files": {}}, "holds no file"),
        ({"files": {"a": 8, "b": 0}}, "file 'b' with 0 samples"),
        ({"files": {"a": 7}}, "files with 7 samples for a dataset with 8"),
        ({"files": {"a": 8}, "rank": 0, "replicas": 2}, "cannot exchange their counts"),
    ],
)
def test_wrong_arguments(arguments, text):
    with pytest.raises(UserError, match="algorun.data: .*; fix: ") as told:
        StepSampler(**{"dataset": 8, "batch_size": 2} | arguments)
    assert text in str(told.value)


def test_a_state_of_other_data_and_reading_without_counting():
    sampler = StepSampler(8, 2)
    with pytest.raises(UserError, match="the dataset has 9 samples in the state and 8 here"):
        sampler.load_state_dict(StepSampler(9, 2).state_dict())
    with pytest.raises(UserError, match="a state of format None"):
        sampler.load_state_dict({})
    list(DataLoader(range(8), batch_sampler=sampler))
    with pytest.raises(UserError, match="read without sampler.counted"):
        sampler.state_dict()
    with pytest.raises(UserError, match="DataLoader of another sampler"):
        next(sampler.counted(DataLoader(range(8))))
    with pytest.raises(UserError, match="in_order=False"):
        next(sampler.counted(DataLoader(range(8), batch_sampler=sampler, num_workers=1, in_order=False)))


# It starts its workers ten times.
@pytest.mark.slow
def test_the_page_s_example_is_the_package_s_and_trains_on_each_sample():
    example = textwrap.dedent(door.__doc__.split("\n\n", 1)[1].split("\n\nIt works", 1)[0])
    assert example in (ROOT / "docs" / "data.md").read_text()
    seen = []
    dataset = TensorDataset(torch.arange(64), torch.arange(64))
    exec(example, {"dataset": dataset, "train": lambda images, labels: seen.extend(labels.tolist())})
    assert sorted(seen) == sorted(list(range(64)) * 10)
