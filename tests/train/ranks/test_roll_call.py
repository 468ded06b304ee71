"""Ranks compare their devices before there is a group: a fault of one host is one error on all ranks."""

import datetime
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from algorun_train.common.errors import UserError
from algorun_train.ranks import join
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.roll_call import RankAnswer, agree, disagreement, one_gpu_each
from algorun_train.ranks.world import World
from tests.train.training_runs import Ranks

GPUS = [RankAnswer(rank, "algo-1", f"cuda:{rank}", f"GPU-{rank}") for rank in range(2)]
CPUS = [RankAnswer(rank, "algo-2", "cpu") for rank in (2, 3)]

# Two hosts of two ranks. algo-2's driver is broken, algo-1's GPUs are there.
PROGRAM = """
import os, sys, types
import torch
from algorun_train.common import errors
from algorun_train.ranks import devices, join
from algorun_train.ranks.world import read_world

mode = sys.argv[1]
devices.device_files = lambda dev="/dev": ["/dev/nvidia0", "/dev/nvidia1"]
torch.version.cuda = "12.8"
broken = os.environ["SM_CURRENT_HOST"] == "algo-2"

def init():
    raise RuntimeError("Error 802: system not yet initialized")

torch.cuda.is_available = lambda: not broken
torch.cuda.device_count = lambda: 2
torch.cuda.init = init
torch.cuda.set_device = lambda device: None
torch.cuda.mem_get_info = lambda device: (79, 80)
torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(uuid=f"GPU-{device.index}")
if not (mode == "hidden" and broken):
    del os.environ["CUDA_VISIBLE_DEVICES"]

def main(argv):
    join.enter(read_world(os.environ))
    print("joined")
    return 0

errors.leave(errors.guarded(main))
"""
EXPECTED = {
    "broken": "error: algo-2 (ranks 2, 3): this host has 2 GPUs (/dev/nvidia0, ..), and torch can use none: Error 802: system "
    "not yet initialized; fix: `algorun doctor` on this host tells what is missing, or CUDA_VISIBLE_DEVICES= (empty) for "
    "training on the CPU\n",
    "hidden": "error: ranks have different devices: GPUs on algo-1 (ranks 0, 1); the CPU on algo-2 (ranks 2, 3); allowed: one "
    "kind for all ranks; fix: `algorun doctor` on algo-2 tells why it has none, or CUDA_VISIBLE_DEVICES= (empty) on all hosts\n",
}


@pytest.mark.parametrize("mode", list(EXPECTED))
def test_all_ranks_end_with_the_same_error_before_a_group_is_made(mode, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ranks = Ranks(tmp_path, 2, 2, [mode], program=str(program))
    try:
        assert ranks.codes() == [64] * 4, [ranks.text(rank) for rank in range(4)]
        assert [ranks.text(rank) for rank in range(4)] == [EXPECTED[mode]] * 4
    finally:
        ranks.kill()


@pytest.mark.parametrize(
    ("places", "text"),
    [
        (GPUS, ""),
        (CPUS, ""),
        ([*GPUS, *CPUS], "ranks have different devices: GPUs on algo-1 (ranks 0, 1); the CPU on algo-2 (ranks 2, 3);"),
        ([RankAnswer(0, "a", "cpu", error="no driver"), *GPUS[1:]], "a (rank 0): no driver"),
        (
            [
                RankAnswer(rank, "a" if rank < 2 else "b", "cpu", error="too old" if rank == 2 else "no driver")
                for rank in range(4)
            ],
            "a (ranks 0, 1), b (rank 3): no driver; 1 more rank has another error: b (rank 2)",
        ),
        (
            [RankAnswer(rank, f"algo-{rank}", "cpu", error=f"error {rank}") for rank in range(8)],
            "algo-0 (rank 0): error 0; 7 more ranks have other errors: algo-1 (rank 1), algo-2 (rank 2), "
            "algo-3 (rank 3), algo-4 (rank 4) and 3 more",
        ),
        (
            [GPUS[0], RankAnswer(1, "algo-1", "cuda:0", "GPU-0")],
            "ranks 0 and 1 on algo-1 have the same GPU (GPU-0); allowed: a GPU for each rank;",
        ),
        ([GPUS[0], RankAnswer(1, "algo-2", "cuda:0", "GPU-0")], ""),  # NCCL compares GPUs of one host
        ([RankAnswer(rank, "algo-1", "cuda:0") for rank in range(2)], ""),  # not known, or not compared
    ],
)
def test_what_keeps_ranks_from_training_together(places, text):
    assert disagreement(reversed(places)).startswith(text)
    assert bool(disagreement(places)) == bool(text)


@pytest.mark.parametrize(
    ("backends", "environ", "refused"),
    [
        ("cpu:gloo,cuda:nccl", {}, True),
        ("cpu:gloo,cuda:gloo", {}, False),
        ("cpu:gloo,cuda:nccl", {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}, False),
        ("cpu:gloo,cuda:nccl", {"NCCL_MULTI_RANK_GPU_ENABLE": "0"}, True),
        ("cpu:gloo,cuda:nccl", {"NCCL_HOSTID": "rank-3"}, False),
    ],
)
def test_a_shared_gpu_is_refused_where_nccl_refuses_it(backends, environ, refused):
    assert one_gpu_each(backends, environ) is refused


@pytest.mark.parametrize(("backend", "joins"), [("gloo", True), ("nccl", False)])
def test_ranks_of_a_script_s_own_group_may_share_a_gpu_by_gloo(backend, joins, monkeypatch):
    world = World(1, 2, 0, 1, True)
    monkeypatch.setattr(join.devices, "find", lambda *_: torch.device("cuda:0"))
    monkeypatch.setattr(join.devices, "identity", lambda _: "GPU-0")
    monkeypatch.setattr(Communicator, "gather", lambda _, mine: [replace(mine, rank=0), mine])
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda: "undefined")
    monkeypatch.setattr(dist, "get_backend_config", lambda: f"cpu:gloo,cuda:{backend}")
    if joins:
        assert join.enter(world).device == torch.device("cuda:0")
    else:
        with pytest.raises(UserError, match="have the same GPU"):
            join.enter(world)


def test_many_hosts_are_not_all_listed():
    places = [*GPUS, *(RankAnswer(rank, f"algo-{rank}", "cpu") for rank in range(2, 64))]
    assert "the CPU on algo-2 (rank 2), algo-3 (rank 3), algo-4 (rank 4), algo-5 (rank 5) and 58 more;" in disagreement(
        places
    )


def call(places, store=None):
    """What every rank raises, in the order of `places`."""
    store = store or dist.HashStore()
    store.set_timeout(datetime.timedelta(seconds=10))

    def rank(place):
        try:
            agree(store, len(places), place)
        except UserError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(places)) as pool:
        return list(pool.map(rank, places))


def test_ranks_that_agree_go_on_and_those_that_do_not_all_raise():
    assert call([*GPUS]) == ["", ""]
    assert call([*GPUS, *CPUS]) == [disagreement([*GPUS, *CPUS])] * 4


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["refused, healed", "healthy, refused"])
def test_ranks_that_start_again_hear_nothing_of_the_time_before(order):
    """torchrun may start ranks anew over one store, with the same TORCHELASTIC_RESTART_COUNT."""
    store = dist.HashStore()
    rounds = [[GPUS[0], RankAnswer(1, "algo-1", "cpu")], [*GPUS]]
    for number in order:
        assert call(rounds[number], store) == [disagreement(rounds[number])] * 2


@pytest.mark.parametrize("early", [0, 1])
def test_ranks_that_ended_before_the_others_came_do_not_count(early):
    """A host that joins while others start: torchrun ends these and starts all anew."""
    store = dist.HashStore()
    store.set_timeout(datetime.timedelta(seconds=0.1))
    with pytest.raises(RuntimeError):
        agree(store, 2, RankAnswer(early, "algo-1", "cpu"))
    assert call([*GPUS], store) == ["", ""]


def test_a_rank_does_not_wait_for_ever_for_a_rank_0_that_was_there_before():
    store = dist.HashStore()
    assert call([*GPUS], store) == ["", ""]
    store.set_timeout(datetime.timedelta(seconds=0.2))
    with pytest.raises(dist.DistStoreError, match="wait timeout after 200ms"):
        agree(store, 2, GPUS[1])
