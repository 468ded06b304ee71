"""With one queue of operations for each rank, as NCCL has it under `device_id`, no pass of a pipeline can deadlock."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from algorun_train.parallel import schedules
from algorun_train.parallel.layout.grid import Grid
from algorun_train.parallel.model.model_stages import ModelStages
from algorun_train.parallel.run import process_groups
from algorun_train.parallel.run.options import RunOptions
from algorun_train.parallel.run.pipeline import Pipeline
from tests.train.parallel.one_queue import ALL, RECEIVE, SEND, Queue, listened, stuck
from tests.train.parallel.pipeline_cases import PER_MICROBATCH
from tests.train.parallel.pipeline_models import CLASSES, WIDTH, ByHand, loss_of, score

# (schedule, ranks, chunks)
LAYOUTS = [
    ("gpipe", 2, 1), ("1f1b", 4, 1),
    ("interleaved", 2, 2), ("interleaved", 3, 2), ("interleaved", 3, 3), ("interleaved", 4, 2), ("interleaved", 8, 3),
    ("zero-bubble", 3, 2), ("zbv", 2, 2), ("zbv", 4, 2), ("dualpipev", 3, 2),
]  # fmt: skip
COUNTS = (1, 2, 3, 5, 8, 12)
AUTOCASTS = (None, torch.bfloat16)  # with another one than in training, ranks tell each other types as well


def queues(schedule: str, ranks: int, chunks: int, count: int, work: Callable[[Pipeline], object]) -> list[Queue]:
    """What `work` issues on each rank of a pipeline, from joining on; each rank in turn, in this process."""
    stages = ranks * chunks
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(stages - 1)), nn.Linear(WIDTH, CLASSES))
    found = []
    for rank in range(ranks):
        dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
        try:
            with listened(moves=False) as queue:
                place = process_groups.join(Grid(1, ranks), rank, torch.device("cpu"))
                cutting = ByHand(model, torch.zeros(PER_MICROBATCH, WIDTH))
                how = RunOptions(microbatches=count, schedule=schedule)
                work(Pipeline(ModelStages(cutting, tuple(range(stages))), place, how, loss_of))
            found.append(queue)
        finally:
            dist.destroy_process_group()
    return found


def counts(schedule: str, ranks: int, chunks: int) -> tuple[int, ...]:
    if schedules.SCHEDULES[schedule].v_shaped and torch.__version__.startswith("2.10."):
        pytest.skip("torch 2.10 has them, but on Gloo they fail")
    return schedules.allowed_microbatches(schedule, ranks, ranks * chunks, COUNTS, torch.__version__)


@pytest.mark.parametrize(("schedule", "ranks", "chunks"), LAYOUTS)
def test_evaluation_ends_with_one_queue_for_each_rank(schedule, ranks, chunks):
    def evaluated(made: Pipeline) -> None:
        made.eval()
        for count in COUNTS:  # any number, whatever the schedule asks for
            for autocast in AUTOCASTS:
                parts = [(torch.zeros(PER_MICROBATCH, WIDTH),)] * count
                made.forward(parts, lambda output, number: None, autocast)

    assert stuck(queues(schedule, ranks, chunks, counts(schedule, ranks, chunks)[-1], evaluated)) == []


@pytest.mark.parametrize(("schedule", "ranks", "chunks"), LAYOUTS)
def test_training_ends_with_one_queue_for_each_rank(schedule, ranks, chunks):
    for count in counts(schedule, ranks, chunks)[::2]:
        inputs = torch.zeros(count * PER_MICROBATCH, WIDTH)
        labels = torch.zeros(count * PER_MICROBATCH, dtype=torch.int64)

        def trained(made: Pipeline, inputs: torch.Tensor = inputs, labels: torch.Tensor = labels) -> None:
            for _ in range(2):
                made.step(inputs, labels)
                made.clip(1.0)
                made.evaluate(inputs, labels, score)

        assert stuck(queues(schedule, ranks, chunks, count, trained)) == [], count


def test_the_first_operation_of_a_pipeline_is_one_of_all_its_ranks():
    """It makes NCCL's communicator, for which all ranks have to be there."""
    for queue in queues("1f1b", 3, 1, 3, lambda made: None):
        assert queue[0] == [(ALL, -1)]


def test_the_model_of_one_queue_knows_a_deadlock_from_none():
    send, receive = [(SEND, 1)], [(RECEIVE, 1)]
    assert stuck([[send, receive], [[(SEND, 0)], [(RECEIVE, 0)]]]) != []
    assert stuck([[send, receive], [[(RECEIVE, 0)], [(SEND, 0)]]]) == []
    assert stuck([[send + receive], [[(SEND, 0), (RECEIVE, 0)]]]) == []
    assert stuck([[[(ALL, -1)], send], [[(RECEIVE, 0)], [(ALL, -1)]]]) != []
