"""A job that resumes with other options, or without a step left: what it says, and that it never passes for trained."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from algorun_train.checkpoint.finished import Artifact
from algorun_train.checkpoint.resumed import Resumed
from algorun_train.common.errors import UserError
from algorun_train.data.sampler import Batching
from algorun_train.jobs import skeleton
from algorun_train.jobs.chosen_model import EmbeddedModel
from algorun_train.jobs.resuming import Resuming, introduction, job_name, training_values
from algorun_train.loop.progress import LoopProgress, Position
from algorun_train.options import option_parser
from algorun_train.options.job_options import DdpJobOptions, PipelineJobOptions
from algorun_train.options.option_rules import OnResume, values_of
from tests.train.training_runs import SMALL, epochs, once, write_images

FEW = once([*SMALL, "--batch-size", "500"])
HALF, END = Position(1, 0, 10), Position(2, 0, 20)
OTHERS = {"lr": "0.5", "gamma": "0.5", "clip_norm": "1", "precision": "bf16", "augment": "flip", "matmul_precision": "high",
          "momentum": "0.5", "weight_decay": "0.5", "warmup_epochs": "0.5", "scale_lr": "True", "reference_batch": "8",
          "dropout": "0.5", "skip_bad_samples": "True", "init_from": "/other.pt"}  # fmt: skip


def asked(*words: str, ranks: int = 1, job: str = "", kind: type = DdpJobOptions) -> Resuming:
    options = option_parser.read_options(kind, ["--epochs", "2", *words])
    training = training_values(options, Batching(options.batch_size, options.accumulation, 0, ranks), {"images": "a"})
    return Resuming(options, training, Artifact(job, values_of(options, {OnResume.ARTIFACT})), 100)


def from_checkpoint(at: Position, job: Resuming, artifact: Artifact | None = None, **changed: object) -> Resumed:
    return Resumed("ckpt/step", LoopProgress(at, [0.5]), {**job.training, **changed}, artifact)


def refused(resumed: Resumed, job: Resuming) -> str:
    with pytest.raises(UserError) as caught:
        introduction(resumed, job)
    return str(caught.value)


def test_the_same_options_say_nothing_and_others_one_line_with_both_values():
    job = asked("--lr", "0.01", "--clip-norm", "1")
    assert introduction(from_checkpoint(HALF, job), job) == []
    (line,) = introduction(from_checkpoint(HALF, job, lr=0.1, clip_norm=0.0, images="b"), job)
    assert line == (
        "warning: resumed checkpoint differs: lr was 0.1, is 0.01; clip_norm was 0.0, is 1.0; images was b, is a; "
        "training goes on with the new; fix: --resume never (algorun submit: --clean-state)"
    )


@pytest.mark.parametrize("kind", [DdpJobOptions, PipelineJobOptions])
def test_every_option_says_what_becomes_of_a_job_that_resumes(kind):
    rules = {field.name: field.metadata["rule"] for field in dataclasses.fields(kind)}
    assert {name for name, rule in rules.items() if not isinstance(rule.on_resume, OnResume)} == set()
    compared = {name for name, rule in rules.items() if rule.on_resume is OnResume.COMPARED}
    assert compared <= OTHERS.keys()
    for name in compared:
        with_it = [word for pair in [rules[name].only_with] if pair for word in (f"--{pair[0]}", str(pair[1]))]
        before, job = asked(*with_it, kind=kind), asked(*with_it, f"--{name}", OTHERS[name], kind=kind)
        (line,) = introduction(from_checkpoint(HALF, before), job)
        was, now = before.training[name], job.training[name]
        assert f"differs: {name} was {was}, is {now};" in line


def test_an_option_without_effect_is_not_compared():
    before, job = asked("--momentum", "0.1", "--reference-batch", "3"), asked()
    assert introduction(from_checkpoint(HALF, before), job) == []


def test_layout_length_log_and_saves_differ_without_a_word():
    before = asked("--batch-size", "8", "--accumulation", "2", ranks=2)
    job = asked("--batch-size", "4", "--epochs", "2", "--log-interval", "3", "--keep-checkpoints", "7", "--shard", "all",
                "--checkpoint-interval-s", "1", "--workers", "2", "--output-dir", "/x", "--recompute", ranks=8)  # fmt: skip
    assert introduction(from_checkpoint(HALF, before), job) == []
    (line,) = introduction(from_checkpoint(HALF, before), asked("--batch-size", "4", ranks=4))
    assert "differs: global_batch was 32, is 16;" in line


def test_a_checkpoint_of_an_earlier_version_says_that_its_options_are_unknown():
    (line,) = introduction(Resumed("ckpt/step", LoopProgress(HALF, [0.5]), {}, None), asked())
    assert "the lr, batch and other options that it was trained with are unknown" in line
    assert "--resume never" in line
    assert "no step is left" in refused(Resumed("ckpt/step", LoopProgress(END, [0.5]), {}, None), asked())


@pytest.mark.parametrize("at", [END, Position(1, 100, 20), Position(3, 0, 30)])
def test_nothing_left_with_other_options_names_state_epoch_and_both_fixes(at):
    job = asked("--lr", "0.01")
    text = refused(from_checkpoint(at, job, lr=0.1), job)
    done = max(2, at.epoch)
    assert text == (
        f"checkpoint ckpt/step has trained {done} of --epochs 2: no step is left to train (lr was 0.1, is 0.01); "
        f"allowed: a checkpoint with steps left; fix: --epochs {done + 1} or more, or --resume never "
        "(algorun submit: --clean-state)"
    )


def test_only_a_missing_artifact_of_the_same_options_is_written():
    job = asked(job="a")
    nothing_written = introduction(from_checkpoint(END, job), job)
    assert nothing_written == ["no step is left to train: the job evaluates and writes its artifact"]
    by = {name: Artifact(name, job.artifact.options) for name in ("a", "b", "")}
    assert introduction(from_checkpoint(END, job, by["a"]), job) == nothing_written  # its host was lost afterwards
    refused(from_checkpoint(END, job, by["b"]), job)
    refused(from_checkpoint(END, asked(), by[""]), asked())  # without names nothing tells two jobs apart
    refused(from_checkpoint(Position(3, 0, 30), job), job)  # the artifact of two epochs is not that of three
    assert introduction(from_checkpoint(END, job, Artifact("b", {"merge": True})), job) == nothing_written
    restarted = asked(ranks=2, job="a")  # on other hosts
    assert introduction(from_checkpoint(END, job), restarted) == nothing_written
    refused(from_checkpoint(END, job), asked("--batch-size", "16", ranks=2, job="a"))


def test_a_job_is_known_by_sagemakers_name_else_by_the_launchers_folder():
    assert job_name({"TRAINING_JOB_NAME": "job-1", "ALGORUN_RUN_DIR": "/tmp/algorun-1"}) == "job-1"
    assert job_name({"ALGORUN_RUN_DIR": "/tmp/algorun-1"}) == "algorun-1"
    assert job_name({}) == ""


IDENTITY = {"seed": "1", "optimizer": "sgd", "image_size": "12", "patch_size": "4", "width": "24", "depth": "2", "heads": "2",
            "model": "convnet"}  # fmt: skip
OF_INPUTS = {
    "train",
    "validation",
    "context",
    "lora",
    "lora_alpha",
    "lora_targets",
    "tied",
}  # tested with their readers


def test_what_an_option_decides_is_in_the_identity():
    def identity(*words):
        options = option_parser.read_options(DdpJobOptions, list(words))
        found = EmbeddedModel(options, ["a", "b"], options.image_size or 8).identity
        return {**found, "seed": options.seed, "optimizer": options.optimizer}

    refused_ones = {
        field.name
        for kind in (DdpJobOptions, PipelineJobOptions)
        for field in dataclasses.fields(kind)
        if field.metadata["rule"].on_resume is OnResume.IDENTITY
    }
    assert refused_ones == IDENTITY.keys() | OF_INPUTS
    for name, value in IDENTITY.items():
        assert identity(f"--{name}", value) != identity(), name


# The job itself


def test_a_job_with_another_lr_goes_on_with_it_and_says_so(alone, tmp_path):
    alone(*once([*FEW, "--epochs", "1"]))
    said = alone(*FEW, "--lr", "0.01", "--augment", "none")
    assert said.count("warning: ") == 1
    assert "warning: resumed checkpoint differs: lr was 0.003, is 0.01; augment was shift, is none; training" in said
    assert "learning rate: 0.01," in said
    assert [record["epoch"] for record in epochs(tmp_path / "alone")] == [1, 2]


def test_a_finished_job_with_another_lr_is_refused_and_its_artifact_stays(alone, tmp_path):
    alone(*FEW)
    model = tmp_path / "alone" / "model" / "model.pt"
    before = model.read_bytes()
    with pytest.raises(UserError, match=r"step-0000000. has trained 2 of --epochs 2: .*\(lr was 0.003, is 0.01\);"):
        alone(*FEW, "--lr", "0.01")
    with pytest.raises(UserError, match="no step is left to train; allowed: .* --epochs 3 or more, or --resume never"):
        alone(*FEW)
    assert model.read_bytes() == before
    assert "resumed" not in alone(*FEW, "--lr", "0.01", "--resume", "never")


def test_a_job_that_ended_before_its_artifact_was_written_writes_it(alone, tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    alone(*FEW, base=tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(skeleton, "write_results", killed)
        with pytest.raises(KeyboardInterrupt):
            alone(*FEW)
    with pytest.raises(UserError, match="lr was 0.003, is 0.01"):
        alone(*FEW, "--lr", "0.01")
    assert "no step is left to train: the job evaluates and writes its artifact" in alone(*FEW)
    whole, again = (tmp_path / name for name in ("whole", "alone"))
    assert (again / "model" / "model.pt").read_bytes() == (whole / "model" / "model.pt").read_bytes()
    one, two = (json.loads((base / "output" / "data" / "summary.json").read_text()) for base in (whole, again))
    assert (one["loss"], one["accuracy"], one["steps"]) == (two["loss"], two["accuracy"], two["steps"])


def test_an_interrupted_job_of_sagemaker_writes_its_artifact_on_new_hosts(alone, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINING_JOB_NAME", "job-1")
    alone(*FEW)
    shutil.rmtree(tmp_path / "alone" / "model")
    assert "the job evaluates and writes its artifact" in alone(*FEW)
    assert (tmp_path / "alone" / "model" / "model.pt").is_file()
    monkeypatch.setenv("TRAINING_JOB_NAME", "job-2")
    with pytest.raises(UserError, match="no step is left to train; allowed"):
        alone(*FEW)


def test_other_images_under_equal_numbers_are_named(alone, tmp_path):
    args = [*once([*FEW, "--epochs", "1", "--batch-size", "4"]), "--train"]
    folder = write_images(tmp_path / "one", ["a", "b"], 10)
    alone(*args, str(folder))
    moved: Path = folder.rename(tmp_path / "moved")
    assert "warning" not in alone(*once([*args, str(moved), "--epochs", "2"]))
    file = next((moved / "a").glob("3.*"))
    file.rename(file.with_name("other" + file.suffix))
    assert "warning: resumed checkpoint differs: images was " in alone(*once([*args, str(moved), "--epochs", "3"]))
