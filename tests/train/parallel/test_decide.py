"""The decider in one process: whose cuts count, and when a finer cut is tried."""

import json

import pytest
import torch
from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.options.for_parallel import partition_options
from algorun_train.options.job_options import PipelineJobOptions
from algorun_train.options.mp_parameters import MpParameters
from algorun_train.options.pipeline_layout import lay_out
from algorun_train.parallel.planning.model_partitioner import ModelPartitioner
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.world import World

MIB = 2**20


class Job:
    """Splits `model` as a job of `pp` ranks would; this process plays all of them."""

    def __init__(self, folder, model, width=4):
        self.file, self.model, self.width = folder / "made.json", model, width
        self.said: list[str] = []

    def split(self, microbatches=4, samples=2, wishes=MpParameters(), pp=2, named=True, **options):  # noqa: B008 (frozen)
        config = PipelineJobOptions(
            batch_size=samples * microbatches,
            microbatches=microbatches,
            pp=pp,
            partition=self.file if named else None,
            **options,
        )
        layout = lay_out(config, wishes, pp, torch.__version__)
        ranks = Communicator(World(), torch.device("cpu"))
        self.said = []
        ranks.say = lambda text: self.said.append(str(text))
        partitioner = ModelPartitioner(self.model, layout, partition_options(config, wishes), ranks)
        return partitioner.partition(torch.zeros(samples, self.width), self.file.with_name("partition.json"))


def layers(count, width=4):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(count)))


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path, layers(6))


@pytest.fixture
def edited(job):
    """A file of one unit in the first stage and five in the second, which no decision gives."""
    job.split()
    table = json.loads(job.file.read_text())
    units = [unit for stage in table["stages"] for unit in stage["units"]]
    table["stages"] = [{"units": units[:1]}, {"units": units[1:]}]
    job.file.write_text(json.dumps(table))
    return job.file.read_bytes()


@pytest.mark.parametrize(
    "other",
    [
        {"microbatches": 8},
        {"samples": 4},
        {"microbatches": 8, "wishes": MpParameters(auto_partition=False, default_partition=1)},
        {"samples": 4, "profile_only": True},
    ],
)
def test_a_file_of_one_s_own_is_kept_with_other_microbatches(job, edited, other):
    found = job.split(**other)
    assert found.stages.begins == (0, 1)
    assert job.file.read_bytes() == edited
    assert any("its cuts are kept, its figures are of other microbatches; fix: " in line for line in job.said)
    assert any(f"partition: of {job.file}; planned step" in line for line in job.said)


def test_nothing_is_said_of_a_file_that_fits(job, edited):
    assert job.split().stages.begins == (0, 1)
    assert not any(line.startswith("warning: partition") for line in job.said)


def test_cuts_that_cannot_be_kept_are_one_error(job, edited):
    with pytest.raises(UserError, match=r"stages has 2 of them; allowed: 3, as this job has; fix: .* not exist yet"):
        job.split(pp=3)
    assert job.file.read_bytes() == edited


def test_without_a_file_there_is_no_manual_partition(job):
    with pytest.raises(UserError, match="auto_partition = false without a partition"):
        job.split(wishes=MpParameters(auto_partition=False, default_partition=1))


def nested(groups, each, width):
    return nn.Sequential(*(layers(each, width) for _ in range(groups)))


def test_a_model_in_large_blocks_is_cut_finer_before_it_is_refused(tmp_path):
    """16 layers of 1 MiB with their states in 4 blocks: three layers a rank, so six ranks, however coarse a cut was."""
    job = Job(tmp_path, nested(4, 4, 256), 256)
    for pp in (1, 2, 4):
        with pytest.raises(UserError, match=f"does not fit {pp} pipeline ranks .* fix: more ranks, "):
            job.split(microbatches=8, pp=pp, memory_limit_mb=3.5)
    assert not job.file.exists()
    found = job.split(microbatches=8, pp=6, memory_limit_mb=3.5)
    assert max(found.partition.rank_bytes) <= 3.5 * MIB


def test_a_cut_inside_blocks_fits_and_its_file_is_used_again(tmp_path):
    """Five blocks of two layers over two ranks with room for five layers each: the middle block has to be cut."""
    job = Job(tmp_path, nested(5, 2, 128), 128)
    assert len(job.split(named=False).stages.cutting.segments) == 5
    found = job.split(memory_limit_mb=1.4)
    assert (len(found.stages.cutting.segments), found.stages.begins) == (10, (0, 5))
    again = job.split()
    assert again.stages.begins == found.stages.begins
    assert again.segments == found.segments


def test_what_is_computed_again_is_planned_so(tmp_path):
    """Activations of 64 KiB a layer and microbatch outweigh weights of 16 KiB."""
    width, samples = 64, 256
    job = Job(tmp_path, nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(8))), width)
    plain = job.split(samples=samples, named=False, schedule="gpipe", optimize="memory").partition
    again = job.split(samples=samples, named=False, schedule="gpipe", optimize="memory", recompute=True).partition
    limit = (max(plain.rank_bytes) + max(again.rank_bytes)) / 2 / MIB
    assert max(again.rank_bytes) < 0.7 * max(plain.rank_bytes)
    with pytest.raises(UserError, match="does not fit"):
        job.split(samples=samples, schedule="gpipe", memory_limit_mb=limit)
    job.split(samples=samples, schedule="gpipe", memory_limit_mb=limit, recompute=True)
