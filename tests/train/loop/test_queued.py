"""A step on a GPU is queued there and never waited for: nothing is read back, and all that the host sends is pinned."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from algorun_train.data import image_data, text
from algorun_train.data.augment import Augment, bits
from algorun_train.data.sampler import Batching, Epochs
from algorun_train.loop import losses
from algorun_train.loop.data_parallel_steps import DataParallelSteps
from algorun_train.loop.meter import Meter
from algorun_train.loop.pipeline_steps import PipelineSteps
from algorun_train.models import gpt
from algorun_train.models.image_models import build, specify
from algorun_train.options import folders, option_parser
from algorun_train.options.folders import Folders
from algorun_train.options.job_options import DdpJobOptions, PipelineJobOptions
from algorun_train.parallel.cut.any_module import cut
from algorun_train.parallel.layout.grid import Grid
from algorun_train.parallel.model.model_stages import ModelStages
from algorun_train.parallel.run import process_groups, shared_weights
from algorun_train.parallel.run.options import RunOptions
from algorun_train.parallel.run.pipeline import Pipeline
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.device_copies import ReadBack, to_device
from algorun_train.ranks.world import World
from tests.train.pretended_gpu import CUDA, Copy, PretendedGpu
from tests.train.training_runs import write_images

COMM = Communicator(World(), CUDA)
BATCH, SIDE = 16, 32
PER_SAMPLE = 64  # bytes that the host may send beside images: a few whole numbers


@pytest.fixture
def gpu():
    with PretendedGpu() as mode:
        yield mode


def images(*argv):
    config = option_parser.read_options(DdpJobOptions, ["--image-size", str(SIDE), "--batch-size", str(BATCH), *argv])
    return config, image_data.load(config, folders.find_folders(config, {}, Path.is_dir), COMM)


def first_step(source):
    return next(source.training(Epochs(0, 0, 1, 0), Batching(BATCH, 1, 0, 1)))


def assert_queued(gpu, source, shape, at_most):
    """The second batch of `source`, which costs the host at most so many bytes. Tables are sent before the first."""
    steps = source.training(Epochs(0, 0, 1, 0), Batching(BATCH, 1, 0, 1))
    next(steps)
    gpu.copies.clear()
    _, (batch,) = next(steps)
    assert batch.inputs.is_meta
    assert batch.labels.is_meta
    assert batch.inputs.shape == shape
    assert gpu.copies
    assert all(copy.pinned and copy.non_blocking for copy in gpu.copies), gpu.copies
    assert sum(copy.bytes for copy in gpu.copies) <= at_most, gpu.copies


def test_reading_a_value_back_fails_on_the_pretended_device(gpu):
    there = torch.zeros(3, device=CUDA)
    for read in (torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.cpu, torch.Tensor.nonzero, bool):
        with pytest.raises((RuntimeError, NotImplementedError, ValueError)):
            read(there.sum())
    with pytest.raises((RuntimeError, NotImplementedError)):
        there[there > 0]


@pytest.mark.parametrize("tensor", [torch.zeros(1).expand(4), torch.zeros(3, 4).T, torch.zeros(())])
def test_any_tensor_is_pinned(gpu, tensor):
    there = to_device(tensor, CUDA)
    assert (there.device, there.shape) == (CUDA, tensor.shape)
    assert gpu.copies == [Copy(4 * tensor.numel(), pinned=True, non_blocking=True)]
    assert to_device(there, CUDA) is there
    assert to_device(tensor, torch.device("cpu")) is tensor


@pytest.mark.parametrize("augment", ["none", "shift", "shift+flip"])
def test_images_in_memory_cost_a_few_bytes_per_sample(gpu, augment):
    _, source = images("--augment", augment)
    assert_queued(gpu, source, (BATCH, 3, SIDE, SIDE), BATCH * PER_SAMPLE)


def test_images_from_files_are_pinned_and_the_rest_stays_small(gpu, tmp_path):
    channel = write_images(tmp_path / "train", ["one", "two"], 20)
    _, source = images("--train", str(channel), "--cache-mb", "0", "--workers", "1", "--augment", "shift+flip")
    assert_queued(gpu, source, (BATCH, 3, SIDE, SIDE), BATCH * (PER_SAMPLE + SIDE * SIDE * 3))


def test_text_is_pinned(gpu):
    source = text.load(64, Folders(None, None, Path(), Path(), Path()), COMM)
    assert_queued(gpu, source, (BATCH, 64), BATCH * 65)


@pytest.mark.parametrize("argv", [["--clip-norm", "1", "--dropout", "0.1"], ["--model", "convnet"]])
def test_a_data_parallel_step_reads_nothing_back(gpu, argv):
    config, source = images(*argv)
    model = build(specify(config, len(source.classes), SIDE), 0).to(CUDA)
    stepper = DataParallelSteps(model, torch.optim.SGD(model.parameters(), 0.1, foreach=True), COMM, config)
    meter = Meter(COMM)
    step, batches = first_step(source)
    gpu.copies.clear()
    meter.add(stepper.step(batches, step.weight, 0.1, 1), step, 0.0)
    assert not gpu.copies
    with pytest.raises(RuntimeError):
        meter.fold()  # a log line reads the loss, and may


@pytest.fixture
def cutting():
    model = gpt.build(gpt.GptSpec(context=8, width=16, depth=2, heads=2, dropout=0.1), 0)
    return cut(model, torch.zeros(4, 8, dtype=torch.int64), stages=1)


def test_a_pipeline_step_and_its_evaluation_read_nothing_back(cutting, gpu):
    axes = process_groups.join(Grid(1, 1), 0, CUDA)
    pipeline = Pipeline(ModelStages(cutting, (0,)), axes, RunOptions(microbatches=2), losses.PER_SAMPLE.loss)
    optimizer, options = torch.optim.SGD(pipeline.parameters(), 0.1, foreach=True), PipelineJobOptions(clip_norm=1.0)
    stepper = PipelineSteps(pipeline, optimizer, COMM, options, losses.PER_SAMPLE, random=True)
    source = text.load(8, Folders(None, None, Path(), Path(), Path()), COMM)
    step, batches = next(source.training(Epochs(0, 0, 1, 0), Batching(8, 1, 0, 1)))
    gpu.copies.clear()
    stepper.train()
    Meter(COMM).add(stepper.step(batches, step.total, 0.1, 1), step, 0.0)
    stepper.eval()
    assert stepper.evaluate(batches[0]).is_meta
    assert not gpu.copies


class Event:
    """torch.cuda.Event, which knows in which order it was used."""

    log: ClassVar[list[str]] = []

    def __init__(self):
        self.log.append("made")

    def record(self):
        self.log.append("recorded")

    def synchronize(self):
        self.log.append("waited for")


@pytest.fixture
def events(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    Event.log.clear()
    return Event.log


def test_copies_of_a_tied_weight_are_compared_without_waiting_for_this_step(gpu, events, monkeypatch):
    called = []
    monkeypatch.setattr(shared_weights.dist, "broadcast", lambda *args, **named: called.append("broadcast"))
    monkeypatch.setattr(shared_weights.dist, "all_reduce", lambda *args, **named: called.append("all_reduce"))
    weight = nn.Parameter(torch.zeros(4, 4, device=CUDA))
    here = process_groups.Axes(Grid(1, 2), 0, 0, "the pipeline's group", None, CUDA)
    one = shared_weights.SharedWeight("head", (0, 1))
    tied = shared_weights.SharedWeights([one], (0, 1), here, {"head": weight})
    del called[:]
    for turn in (1, 2):
        weight.grad = torch.zeros_like(weight)
        tied.begin()
        tied.finish()
        assert called == ["all_reduce"] * turn
    assert events == ["made", "recorded"] * 2 + ["waited for"]  # in the second step, for the first
    assert not gpu.copies


def test_a_table_is_read_one_turn_late_on_a_gpu_and_at_once_elsewhere(gpu, events):
    there, here = ReadBack(), ReadBack()
    gpu.values = 5.0
    assert there.turn(torch.zeros(2, device=CUDA), "first") is None
    gpu.values = 6.0
    assert there.turn(torch.zeros(2, device=CUDA), "second") == ([5.0, 5.0], "first")
    assert there.turn(torch.zeros(2, device=CUDA), "third") == ([6.0, 6.0], "second")
    assert here.turn(torch.ones(2), "first") == ([1.0, 1.0], "first")


@pytest.mark.parametrize("kind", ["shift", "flip", "shift+flip"])
def test_each_sample_is_shifted_and_flipped_as_its_bits_say(kind):
    side, count, seed, epoch = 16, 30, 7, 3
    pixels = torch.from_numpy(np.random.RandomState(0).randint(0, 255, (count, side, side, 3), np.uint8))
    which = np.array([4, 29, 0, 4])
    found = Augment(kind, seed, count, side)(pixels[which], epoch, which)
    reach = 2 if "shift" in kind else 0
    moves = list(range(-reach, reach + 1))
    ways = [(move, flipped) for flipped in ((False, True) if "flip" in kind else (False,)) for move in moves]
    for image, sample in zip(found, which, strict=True):
        drawn = int(bits(seed, epoch, count)[sample])
        down = moves[drawn % 2**32 % len(moves)]
        right, flipped = ways[(drawn >> 32) % len(ways)]
        rows, columns = (torch.arange(side).add(move).clamp(0, side - 1) for move in (down, right))
        assert torch.equal(image, pixels[sample][rows][:, columns.flip(0) if flipped else columns])
