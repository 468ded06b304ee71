"""The memory of the heaviest rank of a pipeline that is computed ahead, beside what torch's profiler sees in real ranks."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.fit.test_step_memory import FOLDERS, whole_experts
from tests.train.training_runs import TRANSFORMERS, Ranks, clean_environ, load_once

load_once(*TRANSFORMERS, "torch.profiler", "transformers.models.vit.modeling_vit")
PROGRAM = str(Path(__file__).parents[1] / "programs" / "fit_stage_memory.py")
BATCH = ("--batch-size", "16")
# Model, ranks, stages, options: each model, each schedule, each way to hold less, and two pipelines beside each other.
CASES = [
    ("llama", 2, 2, ()),
    ("llama", 4, 4, ("--precision", "bf16")),
    ("llama", 4, 2, ()),
    ("llama", 2, 2, ("--schedule", "gpipe")),
    ("llama", 2, 2, ("--schedule", "interleaved")),
    ("llama", 2, 2, ("--recompute", "True")),
    ("llama", 2, 2, ("--recompute", "True", "--precision", "bf16")),
    ("tied", 2, 2, ("--optimizer", "sgd", "--clip-norm", "1")),
    ("gpt2", 2, 2, ("--precision", "bf16")),
    ("vit", 2, 2, ()),
    ("mixtral", 2, 2, ("--microbatches", "4")),
]


# No rank runs in `make test`: test_live_bytes.py has how bytes are counted.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "ranks", "stages", "options"),
    CASES,
    ids=["-".join([*map(str, case[:3]), *(word.strip("-") for word in case[3])]) for case in CASES],
)
def test_the_heaviest_rank_takes_what_was_computed(tmp_path, kind, ranks, stages, options):
    """Its stages begin where the computation has put them: a job measures times, and may choose others."""
    folder = FOLDERS[kind](tmp_path / "model")
    text = () if kind == "vit" else ("--context", "32")
    words = ["--model", str(folder), *text, *BATCH, "--pp", str(stages), *options]
    run = Ranks(tmp_path / "ranks", 1, ranks, words, program=PROGRAM)
    try:
        assert run.codes() == [0] * ranks, run.text()
    finally:
        run.kill()
    computed, measured = (int(re.search(rf"{what}=(\d+)", run.text())[1]) for what in ("computed", "measured"))
    assert computed == pytest.approx(measured, rel=0.1), run.text()


def computed(
    base: Path, folder: Path, layouts: list[dict[str, object]], *options: str
) -> subprocess.CompletedProcess[str]:
    common = {"shards": 1, "tensor": 1, "alone": True, "precision": "fp32", "recompute": False, "tried": False}
    return subprocess.run(
        [sys.executable, "-m", "algorun_train.fit.fit", "pipeline", "--model", str(folder), *options],
        input="".join(json.dumps({**common, **each}) + "\n" for each in layouts),
        capture_output=True, text=True, timeout=120, env=clean_environ(base / "base"),
    )  # fmt: skip


@pytest.mark.slow
def test_more_stages_take_less_and_more_stages_than_layers_are_null_if_only_tried(tmp_path):
    folder = FOLDERS["llama"](tmp_path / "model")
    ended = computed(tmp_path, folder, [{"stages": 2}, {"stages": 4}, {"stages": 8, "tried": True}], "--context", "32")
    assert ended.returncode == 0, ended.stderr
    _, two, four, eight = map(json.loads, ended.stdout.splitlines())
    assert four["weights"] < two["weights"]
    assert sum(four.values()) < sum(two.values())
    assert eight is None


REFUSED = {
    "more stages than layers": ("llama", 8, (), "option --pp: 8 stages of LlamaForCausalLM with 4 layers; allowed: at most as many"),
    "a schedule": ("llama", 2, ("--schedule", "zbv"), "option --schedule: zbv, which splits the backward pass, is not computed ahead"),
    "tensor groups": ("llama", 2, ("--tp", "2"), "option --tp: 2 with stages is not computed ahead"),
    "shards": ("llama", 2, ("--shard", "2"), "option --shard: 2 with stages is not computed ahead"),
    "a limit": ("llama", 2, ("--memory-limit-mb", "1"), "option --memory-limit-mb: 1.0; no 2 stages of LlamaForCausalLM are within it"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_computed_ahead_is_one_error(tmp_path, case):
    kind, stages, options, text = REFUSED[case]
    ended = computed(tmp_path, FOLDERS[kind](tmp_path / "model"), [{"stages": stages}], "--context", "32", *options)
    assert ended.returncode == 64, ended.stderr
    assert ended.stderr.splitlines()[-1].startswith(f"error: {text}"), ended.stderr


@pytest.mark.slow
def test_whole_experts_are_computed_or_refused_in_one_error(tmp_path):
    ended = computed(tmp_path, whole_experts(tmp_path / "model"), [{"stages": 2}], "--context", "32")
    assert ended.returncode in (0, 64), ended.stderr
    assert "Traceback" not in ended.stderr
