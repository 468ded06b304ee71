"""What ranks of simulated hosts see of this machine's GPUs. /dev is a folder of the test's."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import clean_environ, needs_mpi

from .running import PROGRAMS

ON_A_MACHINE = """
import functools, sys
from algorun.commands import simulated_gpus
simulated_gpus.give_out = functools.partial(simulated_gpus.give_out, root=sys.argv[1])
from algorun.cli import main
sys.exit(main(sys.argv[2:]))
"""


def visible(folder, ranks: int) -> list[str | None]:
    environs = [json.loads((folder / f"rank-{rank}.json").read_text())["env"] for rank in range(ranks)]
    return [environ.get("CUDA_VISIBLE_DEVICES") for environ in environs]


def on_a_machine(folder, gpus: int, *words: str, names: str | None = None) -> subprocess.CompletedProcess[str]:
    """`simulate` on a machine with these GPUs. `names`: its CUDA_VISIBLE_DEVICES, None for none."""
    (folder / "machine/dev").mkdir(parents=True)
    for number in range(gpus):
        (folder / f"machine/dev/nvidia{number}").touch()
    environ = clean_environ()
    del environ["CUDA_VISIBLE_DEVICES"]
    if names is not None:
        environ["CUDA_VISIBLE_DEVICES"] = names
    argv = [sys.executable, "-c", ON_A_MACHINE, str(folder / "machine"), "simulate", *words]
    return subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False)


# What the supervisor does is the same under all engines.
@pytest.mark.slow(but=["native"])
@pytest.mark.parametrize("engine", ["native", pytest.param("mpirun", marks=needs_mpi)])
def test_simulated_hosts_share_no_gpu(engine, tmp_path):
    words = ["-j", "2x2", "--engine", engine, str(PROGRAMS / "environment.py"), str(tmp_path)]
    done = on_a_machine(tmp_path, 8, *words, names="GPU-aa,GPU-bb,5,GPU-cc,7")
    assert done.returncode == 0, done.stdout + done.stderr
    assert visible(tmp_path, 4) == ["GPU-aa,GPU-bb", "GPU-aa,GPU-bb", "5,GPU-cc", "5,GPU-cc"]
    assert "on the CPU" not in done.stdout


@pytest.mark.parametrize(
    ("gpus", "expected"), [(0, [None, None]), (1, ["", ""]), (8, ["0", "1"])], ids=["none", "one", "eight"]
)
def test_a_simulation_runs_on_any_number_of_gpus(gpus, expected, tmp_path):
    done = on_a_machine(tmp_path, gpus, "-j", "2x1", str(PROGRAMS / "environment.py"), str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert visible(tmp_path, 2) == expected
    said = (
        "algorun: the simulated hosts compute on the CPU: 2 hosts x 1 rank need 2 GPUs, but there is 1 (/dev/nvidia*)\n"
    )
    assert done.stdout.count(said) == (gpus == 1)
    assert ("on the CPU" in done.stdout) == (gpus == 1)


@pytest.mark.parametrize(
    ("words", "expected", "is_default"),
    [
        ("--hosts 2 --per-gpu", ["0,1,2", "3,4,5"], False),  # one rank each: the hosts themselves find no GPU here
        ("--hosts 2", ["0,1,2", "3,4,5"], True),
        ("--hosts 2 --per-host", ["0,1,2", "3,4,5"], False),
        ("--hosts 2 --slots 2", ["0,1", "0,1", "2,3", "2,3"], False),
    ],
)
def test_hosts_share_all_gpus_evenly_where_nobody_counts_ranks(words, expected, is_default, tmp_path):
    done = on_a_machine(tmp_path, 7, *words.split(), str(PROGRAMS / "environment.py"), str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert visible(tmp_path, len(expected)) == expected
    assert ("one rank per host (default; --slots and --per-gpu change it)" in done.stdout) == is_default


def test_names_of_gpus_that_are_not_there_are_one_warning(tmp_path):
    done = on_a_machine(tmp_path, 2, "-j", "1x1", str(PROGRAMS / "environment.py"), str(tmp_path), names="1,7,8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert visible(tmp_path, 1) == ["1"]
    assert (done.stdout + done.stderr).count("algorun: warning: CUDA_VISIBLE_DEVICES: ") == 1
    assert "'7' in '1,7,8' is not a GPU of this machine, which has 2; CUDA ignores '7', '8'; fix: " in done.stdout


# A rank loads torch to show that a neighbour's behaviour stays as it was.
@pytest.mark.slow
def test_the_bundled_ddp_trains_on_a_gpu_machine_whose_torch_has_no_cuda(tmp_path):
    import torch

    if torch.version.cuda:
        pytest.skip("needs a torch without CUDA")
    done = on_a_machine(tmp_path, 8, "-j", "1x1", "ddp", "--epochs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("algorun: the simulated hosts compute on the CPU: torch is built without CUDA\n")
    assert "fp32 on cpu" in done.stdout
