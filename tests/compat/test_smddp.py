"""Scripts for AWS's closed data parallel library run on open parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.conftest import ROOT, algorun, needs_mpi
from tests.train.training_runs import Ranks

PROGRAM = Path(__file__).parent / "programs" / "smddp.py"


FOUR = "smddp sum 10.0 parts [0.0, 1.0, 2.0, 3.0] grad [3.0, 3.0, 3.0]"  # the mean of 2 x rank
TWO = "smddp sum 3.0 parts [0.0, 1.0] grad [1.0, 1.0, 1.0]"
TORCH = tuple(int(number) for number in torch.__version__.split(".")[:2])
ALL_TO_ALL = TORCH > (2, 10)  # 2.10's Gloo has all_to_all_single alone
MONITORED = "ValueError: monitored_barrier is only implemented for GLOO backend." if TORCH < (2, 15) else "nothing"
SPLIT = "RuntimeError: No device associated with the default pg" if TORCH < (2, 15) else "nothing"


# `make test` forks the ranks of such a program, below.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "slots", "said"),
    [("native", 2, FOUR), pytest.param("mpirun", 1, TWO, marks=needs_mpi)],
)
def test_the_backend_smddp_reduces_gathers_and_carries_ddp(engine, slots, said, tmp_path, nothing_left):
    options = ["-j", f"2x{slots}", "--engine", engine]
    done = algorun("simulate", *options, str(PROGRAM), cwd=tmp_path, ALGORUN_TEST=nothing_left)
    assert done.code == 0, done.text
    for rank, host in enumerate(["algo-1"] * slots + ["algo-2"] * slots):
        assert f"[{rank} {host}] {said}" in done.out


def test_the_first_interface_of_the_library(tmp_path):
    with Ranks(tmp_path, 2, 2, [], str(PROGRAM.with_name("smddp_first.py"))) as run:
        assert run.codes() == [0] * 4, "\n".join(map(run.text, range(4)))
    for rank in range(4):
        assert f"local {rank % 2} of 4 sum 10.0 grad [3.0, 3.0, 3.0]\n" in run.text(rank)


def results(base: Path, ranks: int, program: str, *args: str) -> list[dict]:
    """What each rank of a program printed last, as JSON."""
    with Ranks(base, 1, ranks, list(args), str(PROGRAM.with_name(program))) as run:
        assert run.codes() == [0] * ranks, "\n".join(map(run.text, range(ranks)))
    return [json.loads(run.text(rank).strip().splitlines()[-1]) for rank in range(ranks)]


@pytest.fixture(scope="module", params=[2, 4])
def collectives(request, tmp_path_factory) -> list[dict]:
    return results(tmp_path_factory.mktemp("collectives"), request.param, "smddp_collectives.py")


def test_collectives_of_the_documentation(collectives):
    size = len(collectives)
    whole, mean = size * (size + 1) / 2, (size + 1) / 2
    every = [[float(rank + 1)] for rank in range(size)]
    for rank, found in enumerate(collectives):
        assert found["first"] == {
            "default": [[whole], False],
            "none": [[whole], False],
            "SUM": [[whole], False],
            "AVERAGE": [[mean], False],
            "MIN": [[1.0], False],
            "MAX": [[float(size)], False],
            "async": [[mean], True],
            "in a group": [[whole], False],
            "broadcast": [[1.0], False],
            "broadcast of 1": [[2.0], True],
            "all_gather": [None, every],
            "all_gather async": [True, every],
            "all_to_all_single": [[rank + 10.0 * other for other in range(size)], None],
            "unequal parts": [float(other) for other in range(size) for _ in range(other + 1)],
            "barrier": [None, True],
            "state": [True, True, True],
        }


def test_collectives_of_torch_beside_them(collectives):
    size = len(collectives)
    every = [[float(rank + 1)] for rank in range(size)]
    for rank, found in enumerate(collectives):
        assert found["torch"] == {
            "all_gather_into_tensor": [float(other + 1) for other in range(size)],
            "reduce_scatter_tensor": [size * (rank + 1.0)],
            "all_to_all": [[float(rank)] if ALL_TO_ALL else [0.0]] * size,
            "gather": every if rank == 0 else [[0.0]] * size,
            "scatter": [float(rank)],
            "objects": list(range(size)),
            "said": ["from 0"],
            "ring": [float(rank or size)],
            "pair": [3.0 if rank < 2 else rank + 1.0],
            "backends": ["smddp", "gloo"],
            "beside": [[size * (size + 1) / 2], False],
        }


def test_what_cannot_run_says_so(collectives):
    for found in collectives:
        says = found["refused"]
        assert says.pop("premultiplied") == "RuntimeError: Cannot use ReduceOp.PREMUL_SUM with Gloo"
        assert says.pop("monitored_barrier") == MONITORED
        assert says.pop("split_group").startswith(SPLIT)
        assert says == {
            "average of integers": "UserError: all_reduce: AVERAGE of torch.int64 on the CPU; allowed: floating point; "
            "fix: reduce with SUM and divide by get_world_size()",
            "accumulation": "UserError: DistributedDataParallel: gradient_accumulation_steps is not offered, as in the "
            "library since 1.4; fix: call forward and backward inside `with model.no_sync():` for all but the last batch",
            "local rank": "UserError: get_local_rank: LOCAL_RANK is not set; allowed: a number; fix: start the ranks by "
            "algorun or torchrun",
            "group": "UserError: init_process_group: group; allowed: group.WORLD; fix: make the group by new_group() "
            "afterwards",
        }


@pytest.mark.slow
def test_training_over_the_backend(tmp_path):
    """Data parallel to the last bit as over gloo; sharded, saved and in stages up to the order of sums."""
    weights = 6 * 16 + 16 + 16 * 6 + 6
    found = results(tmp_path, 2, "smddp_training.py", str(tmp_path / "checkpoint"))
    assert [rank["ddp"] for rank in found] == [0.0, 0.0]
    assert [rank["the library's ddp"] for rank in found] == [0.0, 0.0]
    assert sum(rank["zero"][1] for rank in found) == 2 * weights, "Adam's two moments, each on one rank"
    assert all(rank["zero"][1] for rank in found)
    assert [rank["fsdp"][1] for rank in found] == [8, 8], "half of 16 rows each"
    for rank in found:
        assert rank["no_sync"] < 1e-6
        assert rank["zero"][0] < 1e-6
        assert rank["fsdp"][0] < 1e-5
        assert rank["checkpoint"] < 1e-5
        assert max(rank["pipelining"]) < 1e-6


def test_a_script_that_somebody_starts_alone(python):
    """As documented: it asks is_available() and trains without the library."""
    asks = (
        "import smdistributed.dataparallel.torch as sdp, smdistributed.dataparallel.torch.distributed as dist\n"
        "print(dist.is_available(), dist.is_initialized(), sdp.get_local_rank())"
    )
    assert python(asks) == (0, "False False 0\n")
    job = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "LOCAL_RANK": "1"}
    assert python(asks, **job) == (0, "True False 1\n")


@pytest.mark.parametrize("part", ["", ".keras"])
@pytest.mark.parametrize(
    ("package", "allowed", "fix"),
    [
        ("dataparallel", "TensorFlow 2", "add tensorflow==2.21.0 to requirements.txt"),
        (
            "modelparallel",
            "TensorFlow with tf_keras of its version",
            "add tensorflow==2.21.0 and tf_keras==2.21.0 to requirements.txt",
        ),
    ],
)
def test_a_missing_tensorflow_is_one_error_that_names_the_fix(package, allowed, fix, part, python):
    name = f"smdistributed.{package}.tensorflow"
    code, text = python(f"import sys; sys.modules['tensorflow'] = None; import {name}{part}")
    assert code == 1
    said = f"ImportError: {name}: TensorFlow is not installed; allowed: {allowed}; fix: {fix}"
    assert text.strip().splitlines()[-1] == said


def test_horovod_is_offered_beside_tensorflow_only(python, tmp_path):
    """Its other parts are not ours, and programs ask for the name to see what they may use."""
    asks = "import sys, types, importlib.util as u\nsys.modules['tensorflow'] = {}\nprint(*({}))".format
    assert python(asks("None", "[u.find_spec('horovod')]")) == (0, "None\n")
    there = "u.find_spec(name) is not None for name in ('horovod', 'horovod.tensorflow', 'horovod.torch')"
    assert python(asks("types.ModuleType('tensorflow')", there)) == (0, "True True False\n")
    theirs = tmp_path / "horovod" / "tensorflow.py"
    theirs.parent.mkdir()
    theirs.with_name("__init__.py").touch()
    theirs.touch()
    program = f"import sys; sys.path.append({str(tmp_path)!r})\nimport smdistributed, horovod.tensorflow as t\nprint(t.__file__)"
    assert python(program) == (0, f"{theirs}\n")


# algo-2's driver is broken: its ranks would take Gloo and wait for ranks that take NCCL.
BROKEN = """
import os, sys, types
import torch
import torch.distributed as dist

broken = os.environ["SM_CURRENT_HOST"] == "algo-2"
del os.environ["CUDA_VISIBLE_DEVICES"]
torch.version.cuda = "12.8"

def init():
    raise RuntimeError("Error 802: system not yet initialized")

torch.cuda.is_available = lambda: not broken
torch.cuda.device_count = lambda: 1
torch.cuda.init = init
dist.is_nccl_available = lambda: True
from algorun_train.ranks import devices
devices.device_files = lambda dev="/dev": ["/dev/nvidia0"]
import smdistributed.dataparallel.torch.torch_smddp
dist.init_process_group(backend="smddp")
"""


def test_a_host_that_cannot_use_its_gpu_is_one_error_on_all_ranks(tmp_path):
    program = tmp_path / "broken.py"
    program.write_text(BROKEN)
    run = Ranks(tmp_path, 2, 1, [], str(program), PYTHONPATH=str(ROOT))
    try:
        assert run.codes() == [1, 1]
        expected = (
            "algo-2 (rank 1): this host has 1 GPU (/dev/nvidia0), and torch can use none: Error 802: system not yet"
        )
        assert all(f"UserError: {expected} initialized" in run.text(rank) for rank in range(2)), run.text(0) + run.text(
            1
        )
    finally:
        run.kill()
