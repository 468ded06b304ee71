"""`algorun plan --fit`: its table, the command that it advises, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.model_folders import write_language_model, write_vit

JOB_FILE = """
price = { "ml.g5.xlarge" = 1.41, "ml.p4d.24xlarge" = 37.69, "ml.m5.large" = 0.12 }
"""


def plan(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "algorun", "plan", "--fit", *words]
    environ = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120, env=environ)


def test_the_table_the_types_that_are_left_out_and_a_command_that_works(tmp_path):
    write_language_model(tmp_path / "model")
    (tmp_path / "algorun.toml").write_text(JOB_FILE)
    ended = plan(tmp_path, "--model", "./model", "--hosts", "1", "--context", "16", "--batch-size", "2")
    assert ended.returncode == 0, ended.stderr
    about, heads, first, second, advice = ended.stdout.splitlines()
    assert about.startswith("LlamaForCausalLM, ")
    assert "2 sequences of 16 tokens on each rank" in about
    assert heads.split()[:3] == ["instance", "hosts", "layout"]
    assert first.split()[:2] == ["ml.g5.xlarge", "1"]
    assert first.split()[-1] == "1.41"
    assert second.split()[:2] == ["ml.p4d.24xlarge", "1"]
    assert "left out: ml.m5.large: no GPU" in ended.stderr
    assert advice == (
        "algorun submit --instance ml.g5.xlarge --in model=./model ddp --context 16 --batch-size 2 --precision bf16"
    )
    words = advice.split()[1:]
    dry = [sys.executable, "-m", "algorun", "submit", "--where", "local", "--dry-run", *words[1:], "--epochs", "1"]
    ran = subprocess.run(dry, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
def test_json_has_bytes_and_an_end(tmp_path):
    write_vit(tmp_path / "model")
    words = ("--model", "model", "--instance", "ml.g5.xlarge,ml.g5.xlarge", "--json", "ddp", "--optimizer", "sgd")
    ended = plan(tmp_path, *words)
    assert ended.returncode == 0, ended.stderr
    offer, end = map(json.loads, ended.stdout.splitlines())
    assert offer["event"] == "fit"
    assert offer["peak"] == sum(offer[kind] for kind in ("weights", "moments", "gradients", "gathered", "activations"))
    assert offer["moments"] == pytest.approx(offer["weights"], rel=0.01)  # sgd has one
    assert (offer["fits"], offer["price"], offer["gpu"]) == (True, None, 24 * 10**9)
    assert (end["event"], end["code"]) == ("end", 0)


@pytest.mark.slow
def test_a_model_that_fits_nowhere_is_an_error_after_the_table(tmp_path):
    """Three billion weights, of which a rank has no byte here."""
    write_language_model(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    sizes = {"hidden_size": 16384, "intermediate_size": 32768, "num_hidden_layers": 2, "head_dim": 128}
    config.write_text(json.dumps(json.loads(config.read_text()) | sizes))
    ended = plan(tmp_path, "--model", "model", "--instance", "ml.g5.xlarge", "--hosts", "1", "--context", "16")
    assert ended.returncode == 64
    assert ": too much" in ended.stdout
    assert "--model: fits on none of these hosts: the nearest is 1 x ml.g5.xlarge" in ended.stderr


REFUSED = {
    "no price": ((), "--instance: not given, and the job file has no `price`"),
    "no GPU": (("--instance", "ml.m5.large"), "--instance: ml.m5.large: no GPU"),
    "some with no GPU": (("--instance", "ml.g5.xlarge,ml.c5.xlarge"), "--instance: ml.c5.xlarge: no GPU"),
    "hosts": (("--instance", "ml.g5.xlarge", "--hosts", "0"), "--hosts: '0' is not a whole number"),
    "shards": (
        ("--instance", "ml.p4d.24xlarge", "--shard", "3"),
        "--shard: 3 divides no number of GPUs of up to 8 hosts",
    ),
    "tensor groups": (
        ("--instance", "ml.p4d.24xlarge", "--tp", "3"),
        "--tp: 3 does not divide the GPUs of a host (8); allowed: a divisor of them; fix: --tp 1",
    ),
    "shards of groups": (
        ("--instance", "ml.p4d.24xlarge", "--tp", "2", "--shard", "3"),
        "--shard: 3 divides no number of groups of 2 GPUs of up to 8 hosts",
    ),
    "no number": (("--instance", "ml.p4d.24xlarge", "--tp", "x"), "--tp: 'x' is not a whole number"),
    "another program": (
        ("--instance", "ml.g5.xlarge", "mpi-basics"),
        "plan --fit: 'mpi-basics' is not computed ahead; allowed: ddp, pipeline; fix: leave it out, or ddp",
    ),
    "stages": (
        ("--instance", "ml.g5.12xlarge", "--hosts", "2", "pipeline", "--pp", "3"),
        "--pp: 3: divides no number of GPUs of up to 2 hosts",
    ),
    "one stage": (("--instance", "ml.g5.12xlarge", "pipeline", "--pp", "1"), "--pp: 1: that is no pipeline"),
    "stages of ddp": (("--instance", "ml.g5.12xlarge", "--pp", "2"), "--pp: 2 with ddp is not computed ahead"),
    "tensor groups of stages": (
        ("--instance", "ml.g5.12xlarge", "pipeline", "--tp", "2"),
        "--tp: 2 with pipeline is not computed ahead; allowed: 1; fix: leave it out; `pipeline --profile-only`",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_error(tmp_path, case):
    words, text = REFUSED[case]
    ended = plan(tmp_path, "--model", ".", *words)
    assert ended.returncode == 64
    assert ended.stderr.startswith(f"algorun: error: {text}")
    assert ended.stdout == ""


@pytest.mark.slow
def test_tensor_groups_and_adapters_are_in_the_advice(tmp_path):
    write_language_model(tmp_path / "model")
    words = ("--model", "./model", "--instance", "ml.g5.12xlarge", "--context", "16", "--tp", "2", "ddp", "--lora", "4")
    ended = plan(tmp_path, *words)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == (
        "algorun submit --instance ml.g5.12xlarge --in model=./model ddp --context 16 --batch-size 1 --lora 4 --tp 2 --precision bf16"
    )


def test_a_mistake_in_an_option_of_the_job_is_the_job_s_own_error(tmp_path):
    write_language_model(tmp_path / "model")
    ended = plan(tmp_path, "--model", "model", "--instance", "ml.g5.xlarge", "--optimiser", "sgd")
    assert ended.returncode == 64
    assert "unknown option --optimiser" in ended.stderr
    assert "did you mean --optimizer?" in ended.stderr


@pytest.mark.slow
def test_stages_are_in_the_table_and_in_the_advice(tmp_path):
    write_language_model(tmp_path / "model")
    words = ("--model", "./model", "--instance", "ml.g5.12xlarge", "--hosts", "1", "--context", "16", "pipeline")
    ended = plan(tmp_path, *words, "--optimizer", "sgd")
    assert ended.returncode == 0, ended.stderr
    assert "32 sequences of 16 tokens on each pipeline" in ended.stdout
    assert ended.stdout.splitlines()[-1] == (
        "algorun submit --instance ml.g5.12xlarge --in model=./model pipeline --context 16 --batch-size 32 --optimizer sgd --pp 2 "
        "--precision bf16"
    )
