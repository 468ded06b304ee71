"""One rank cuts a model for all: the others run no pass of the whole, and make the same stages of their own copies."""

import threading
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.options.for_parallel import partition_options
from algorun_train.options.job_options import PipelineJobOptions
from algorun_train.options.mp_parameters import MpParameters
from algorun_train.options.pipeline_layout import lay_out
from algorun_train.parallel.cut.any_module import Cut, cut
from algorun_train.parallel.cut.found_cut import packed, unpacked
from algorun_train.parallel.planning.model_partitioner import ModelPartitioner
from tests.train import split_runs
from tests.train.thread_communicator import as_ranks

RANKS, LAYERS = 4, 6
PROFILED = 4  # passes of every segment on each rank's own device: one to warm up, three that are timed
PASSES: Counter[int] = Counter()  # with values, of a layer, by thread: ranks are threads here


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        PASSES[threading.get_ident()] += not x.is_meta
        return torch.tanh(self.inner(x))


def model_of(seed):
    """Built on each rank by itself; weights may differ."""
    torch.manual_seed(seed)
    return nn.Sequential(*(Layer() for _ in range(LAYERS)))


def job(comm, model, folder, example=None, named=None, **options):
    config = PipelineJobOptions(batch_size=8, microbatches=4, pp=RANKS, partition=named, **options)
    layout = lay_out(config, MpParameters(), RANKS, torch.__version__)
    partitioner = ModelPartitioner(model, layout, partition_options(config, MpParameters()), comm)
    return partitioner.partition(torch.ones(2, 4) if example is None else example, folder / "partition.json").stages


def counted(work):
    """What `work(comm)` returns on each rank, and how many passes each rank has run, in layers."""

    def run(comm):
        before = PASSES[threading.get_ident()]
        result = work(comm)
        return result, PASSES[threading.get_ident()] - before

    return zip(*as_ranks(RANKS, run), strict=True)


def test_only_one_rank_runs_the_whole_model(tmp_path):
    models = [model_of(rank) for rank in range(RANKS)]
    splits, passes = counted(lambda comm: job(comm, models[comm.rank], tmp_path, named=tmp_path / "kept.json"))
    assert passes[0] > 3 * PROFILED * LAYERS
    assert list(passes[1:]) == [PROFILED * LAYERS] * (RANKS - 1)
    assert all((s.begins, s.entries, s.cutting.segments) == (splits[0].begins, splits[0].entries, splits[0].cutting.segments) for s in splits)  # fmt: skip
    for found, model in zip(splits, models, strict=True):  # of the rank's own weights
        stages = split_runs.cut_at(found.cutting, found.begins)
        rows = torch.randn(2, 4)
        split_runs.assert_equal(split_runs.whole(model, rows), split_runs.split(stages, model, [rows]))
    _, passes = counted(lambda comm: job(comm, models[comm.rank], tmp_path, named=tmp_path / "kept.json"))
    assert list(passes[1:]) == [0] * (RANKS - 1)  # the file holds the profile


def test_a_model_that_stays_whole_is_run_by_one_rank(tmp_path):
    models = [model_of(0) for _ in range(RANKS)]
    config = PipelineJobOptions(batch_size=8, microbatches=4, pp=1)
    layout = lay_out(config, MpParameters(), RANKS, torch.__version__)

    def work(comm):
        partitioner = ModelPartitioner(models[comm.rank], layout, partition_options(config, MpParameters()), comm)
        return partitioner.partition(torch.ones(2, 4), tmp_path / "partition.json").stages.entries

    entries, passes = counted(work)
    assert list(passes) == [LAYERS, 0, 0, 0]
    assert set(entries) == {entries[0]}


def test_a_model_that_stays_whole_keeps_its_statistics(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    layout = lay_out(PipelineJobOptions(batch_size=8, microbatches=4, pp=1), MpParameters(), 1, torch.__version__)
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def run(comm):
        config = PipelineJobOptions(batch_size=8, microbatches=4, pp=1)
        partitioner = ModelPartitioner(model, layout, partition_options(config, MpParameters()), comm)
        partitioner.partition(torch.ones(2, 4), tmp_path / "p.json")

    as_ranks(1, run)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("model", "example", "said"),
    [
        (nn.Sequential(*(Layer() for _ in range(5))), None, r"nothing in the place of 5.inner.weight \[4, 4\] float32"),
        (
            model_of(0).double(),
            None,
            r"0.inner.weight \[4, 4\] float64 in the place of 0.inner.weight \[4, 4\] float32",
        ),
        (model_of(0), torch.ones(3, 4), r"input 0 \[3, 4\] float32 in the place of input 0 \[2, 4\] float32"),
    ],
)
def test_another_model_or_example_on_a_rank_is_one_error_of_all(model, example, said, tmp_path):
    def work(comm):
        with pytest.raises(
            UserError, match=f"rank 2 has another model or example than rank 0: {said}; allowed: the same"
        ):
            job(comm, model if comm.rank == 2 else model_of(0), tmp_path, example if comm.rank == 2 else None)

    as_ranks(RANKS, work)


def test_what_the_searching_rank_refuses_all_refuse(tmp_path):
    def work(comm):
        with pytest.raises(UserError, match="4 stages of the model Layer, which can be cut into 1 at most"):
            job(comm, Layer(), tmp_path)

    as_ranks(RANKS, work)


class Handle:
    """What pickle does not take."""

    def __reduce__(self):
        raise TypeError("a handle stays here")


class Holder:
    """Holds a tensor where no container shows it."""

    def __init__(self, tensor):
        self.tensor = tensor.detach()


class Odd(nn.Module):
    """A middle layer returns an object beside its tensor."""

    def __init__(self, other):
        super().__init__()
        self.layers, self.other = nn.ModuleList(Layer() for _ in range(4)), Other(other)

    def forward(self, x):
        x = self.layers[0](x)
        x, beside = self.other(x)
        for layer in self.layers[1:]:
            x = layer(x)
        return x if beside is None else x + 1


class Other(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make, self.inner = make, nn.Linear(4, 4)

    def forward(self, x):
        x = self.inner(x)
        return x, self.make(x)


@pytest.mark.parametrize(
    "make", [lambda x: Handle(), Holder, lambda x: nn.Linear(1, 1)], ids=["handle", "tensor", "module"]
)
def test_results_that_cannot_be_sent_cost_the_other_rank_one_pass(make):
    torch.manual_seed(0)
    model, rows = Odd(make), torch.randn(2, 4)
    found = cut(model, rows, stages=3)
    data = packed(found.found)
    before = PASSES.total()
    told = Cut(model, rows, unpacked(data, model, rows))
    assert PASSES.total() - before == 4  # of its layers, once each
    assert told.segments == found.segments
    stages = split_runs.cut_at(told, range(len(told.segments)))
    split_runs.assert_equal(split_runs.whole(model, rows), split_runs.split(stages, model, [rows]))
    other = Odd(make)
    other.layers = other.layers[:2]
    with pytest.raises(UserError, match="the model Odd calls other modules here than on the rank that has cut it"):
        unpacked(data, other, rows)


def test_no_weights_travel():
    """2 MiB of weights, of which a few KiB tell where to cut."""
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
    assert len(packed(cut(model, torch.ones(2, 256), stages=2).found)) < 16_384


def test_a_rank_that_never_comes_is_not_waited_for_as_long_as_a_search(ranks):
    run = ranks(1, 2, "absent", program=str(Path(__file__).parents[1] / "programs" / "cut_once.py"))
    assert run.codes() == [1, 0], run.text()


def test_ranks_wait_for_a_search_longer_than_for_a_collective_and_its_errors_end_all(ranks):
    run = ranks(1, 2, program=str(Path(__file__).parents[1] / "programs" / "cut_once.py"))
    assert run.codes() == [1, 1], run.text()
    own = [[line for line in run.text(rank).splitlines() if not line.startswith("[Gloo]")] for rank in range(2)]
    assert [lines[0] for lines in own] == ["7", "7"]  # torch 2.10 writes a line when it has connected the ranks
    assert "ValueError: this model does not run" in run.text(0)
    assert "RuntimeError: rank 0 failed: ValueError: this model does not run" in run.text(1)
