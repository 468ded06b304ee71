"""`measure` on hosts of this machine, as a job and before one: its figures, its file, its exit code."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from algorun_train.measure import host_work
from tests.conftest import clean_environ


def simulate(folder, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "algorun", "simulate", *words]
    environ = clean_environ(OMP_NUM_THREADS="1", **variables)
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_three_hosts_measure_themselves_and_their_links(tmp_path):
    """A factor that nothing here exceeds: what is slow on a busy machine is not the question."""
    done = simulate(tmp_path, "-j", "3x1", "measure", "--seconds", "5", "--factor", "1000", "--strict", "True")
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "algorun-simulate/algo-1/output/data/measure.json").read_text())
    assert sorted(tuple(link["hosts"]) for link in figures["links"]) == [
        ("algo-1", "algo-2"), ("algo-1", "algo-3"), ("algo-2", "algo-3"),
    ]  # fmt: skip
    assert all(link["rate"] > 0 and link["round_trip_s"] > 0 for link in figures["links"])
    assert all(host["memory"] > 0 and host["disk"] > 0 for host in figures["hosts"])
    assert {each["bits"] for each in figures["ranks"]} == {host_work.product_bits(torch.device("cpu"))[0]}
    assert "[0 algo-1] measure: 3 links: " in done.stdout
    assert not list(tmp_path.glob("algorun-simulate/*/checkpoints/.algorun-measure-*"))


@pytest.mark.slow
def test_one_host_has_no_links_and_odd_hosts_end_with_69_on_wish(tmp_path):
    one = simulate(tmp_path, "-j", "1x2", "measure", "--seconds", "5")
    assert one.returncode == 0, one.stdout + one.stderr
    assert " links: " not in one.stdout
    odd = simulate(tmp_path, "-j", "3x1", "measure", "--seconds", "5", "--factor", "1.0001", "--strict", "True")
    assert odd.returncode == 69, odd.stdout + odd.stderr
    assert "measure: warning: " in odd.stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--factor", "1"], "option --factor: '1' from the command line is not allowed"),
        (["--seconds", "1"], "option --seconds: '1' from the command line is not allowed"),
    ],
)
def test_a_wrong_option_is_one_error(tmp_path, words, text):
    done = simulate(tmp_path, "-j", "2x1", "measure", *words)
    assert done.returncode == 64
    assert text in done.stdout + done.stderr


BEFORE = """
import os, torch.distributed as dist
dist.init_process_group("gloo")
print("trains after", os.environ["TORCHELASTIC_RESTART_COUNT"], "restarts", flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise ValueError("the first attempt")
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["native", "torchrun", "mpirun"])
def test_a_job_measures_before_its_first_attempt_and_not_again(tmp_path, engine):
    (tmp_path / "script.py").write_text(BEFORE)
    words = ["--engine", engine, "--restarts", "1", "-j", "2x1", "script.py"]
    done = simulate(tmp_path, *words, ALGORUN_PREFLIGHT="measure:5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("[0 algo-1] measure: 1 links: ") == 1
    assert done.stdout.index("measure: 1 links") < done.stdout.index("trains after 0 restarts")
    assert done.stdout.count("trains after 1 restarts") == 2
    assert not (tmp_path / "algorun-simulate/algo-1/output/data/summary.json").exists(), (
        "of the entrypoint measure alone"
    )


@pytest.mark.parametrize("value", ["yes", "measure:", "strict:4", "measure:nan", "strict:1e9"])
def test_a_wrong_wish_is_one_error(tmp_path, value):
    (tmp_path / "script.py").touch()
    done = simulate(tmp_path, "-j", "1x1", "script.py", ALGORUN_PREFLIGHT=value)
    assert done.returncode == 64
    assert (
        f"ALGORUN_PREFLIGHT: {value!r} is not allowed; allowed: measure, strict, each also with"
        in done.stdout + done.stderr
    )


def test_an_engine_without_ranks_measures_nothing(tmp_path):
    (tmp_path / "script.py").touch()
    done = simulate(tmp_path, "--engine", "ray", "-j", "1x1", "script.py", ALGORUN_PREFLIGHT="measure")
    assert done.returncode == 64
    assert (
        "ALGORUN_PREFLIGHT: with the engine ray, which starts no ranks; allowed: native, torchrun, mpirun"
        in done.stdout + done.stderr
    )
