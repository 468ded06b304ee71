"""Command line and TOML to configuration: what is accepted, and that every refusal names option, value and fix."""

from pathlib import Path

import pytest
import torch

from algorun_train.common.errors import UserError
from algorun_train.jobs import skeleton
from algorun_train.options import option_parser
from algorun_train.options.job_options import DdpJobOptions, PipelineJobOptions


def read(*argv: str) -> DdpJobOptions:
    return option_parser.read_options(DdpJobOptions, list(argv))


def refusal(*argv: str) -> str:
    with pytest.raises(UserError) as caught:
        read(*argv)
    return str(caught.value)


def test_dash_and_underscore_are_equal_and_values_are_typed():
    config = read("--batch_size", "48", "--weight-decay", "0.1", "--scale_lr", "True", "--checkpoint-dir", "/x")
    assert (config.batch_size, config.weight_decay, config.scale_lr) == (48, 0.1, True)
    assert config.checkpoint_dir == Path("/x")


def test_other_spellings_of_people():
    assert read("--lr=0.5").lr == 0.5
    assert read("-b", "7").batch_size == 7
    assert read("--compile", "--lr", "1").compile is True
    assert read("--compile").compile is True
    assert read("--val", "/v").validation == Path("/v")


@pytest.mark.parametrize(
    ("text", "value"), [("True", True), ("true", True), ("1", True), ("False", False), ("0", False)]
)
def test_booleans_as_sagemaker_writes_them(text, value):
    assert read("--scale-lr", text).scale_lr is value


def test_whole_numbers_as_a_tuning_job_writes_them():
    assert read("--epochs", "4.0").epochs == 4
    assert "'4.5'" in refusal("--epochs", "4.5")


def test_an_empty_value_means_not_set():
    assert read("--init-from", "", "--epochs", "").epochs == DdpJobOptions().epochs
    assert read("--image-size", "None").image_size is None


def test_the_command_line_wins_over_the_file(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text('lr = 0.25\nbatch-size = 8\nmodel = "convnet"\nscale_lr = true\n')
    config = read("--lr", "0.5", "--config", str(file))
    assert (config.lr, config.batch_size, config.model, config.scale_lr) == (0.5, 8, "convnet", True)


def test_an_unknown_option_suggests_the_nearest():
    text = refusal("--batchsize", "3")
    assert "--batchsize" in text
    assert "--batch-size" in text
    assert "-z" in refusal("-z", "3")


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--lr", "fast"], ["--lr", "'fast'", "a number above 0", "--lr 0.003"]),
        (["--lr", "nan"], ["--lr", "'nan'"]),
        (["--lr", "-1"], ["--lr", "'-1'", "above 0"]),
        (["--epochs", "0"], ["--epochs", "'0'", "at least 1"]),
        (["--model", "resnet"], ["--model", "'resnet'", "vit, convnet"]),
        (["--scale-lr", "maybe"], ["--scale-lr", "'maybe'", "True or False"]),
        (["--gamma", "1.5"], ["--gamma", "at most 1"]),
        (["--lr"], ["--lr", "no value"]),
        (["file.txt"], ["'file.txt'", "not an option"]),
        (["--lr", "1", "--lr", "2"], ["--lr", "'1'", "'2'", "twice"]),
        (["--warmup-epochs", "9", "--epochs", "3"], ["--warmup-epochs", "9", "--epochs 3"]),
        (["--config", "/nowhere.toml"], ["--config", "/nowhere.toml"]),
    ],
)
def test_refusals_name_option_value_and_what_is_allowed(argv, parts):
    text = refusal(*argv)
    for part in [*parts, "fix:"]:
        assert part in text


def test_a_broken_file_and_an_unknown_key_in_it(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text("lr = = 1")
    assert "not valid TOML" in refusal("--config", str(file))
    file.write_text("epoch = 3")
    text = refusal("--config", str(file))
    assert str(file) in text
    assert "--epochs" in text


def test_help_lists_every_option():
    text = option_parser.help_text(DdpJobOptions, "algorun_train.jobs.ddp")
    for name in DdpJobOptions.__dataclass_fields__:
        assert "--" + name.replace("_", "-") in text


def test_the_book_chapters_hyperparameters():
    config = read("--batch_size", "64", "--epochs", "20", "--gamma", "0.7", "--lr", "3e-05")
    assert (config.epochs, config.batch_size, config.gamma, config.lr) == (20, 64, 0.7, 3e-5)


@pytest.fixture
def matmul_precision():
    before = torch.get_float32_matmul_precision()
    yield torch.get_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


def test_the_precision_of_matrix_products_is_torchs_own_unless_given(matmul_precision):
    torch.set_float32_matmul_precision("medium")
    skeleton.set_numerics(option_parser.read_options(DdpJobOptions, []))
    assert matmul_precision() == "medium"
    assert skeleton.numerics(option_parser.read_options(DdpJobOptions, []), torch.device("cpu")) == "fp32 on cpu"
    for config in (DdpJobOptions, PipelineJobOptions):
        given = option_parser.read_options(config, ["--matmul-precision", "high"])
        skeleton.set_numerics(given)
        assert matmul_precision() == "high"
        torch.set_float32_matmul_precision("highest")
    assert skeleton.numerics(given, torch.device("cuda")) == "fp32, matrix products in high precision on cuda"
    with pytest.raises(UserError, match="--matmul-precision: 'tf32' .* allowed: highest, high, medium"):
        option_parser.read_options(DdpJobOptions, ["--matmul-precision", "tf32"])


@pytest.mark.parametrize(
    ("precision", "device", "has_units", "warned"),
    [
        ("bf16", "cuda", False, True),
        ("bf16", "cuda", True, False),
        ("fp32", "cuda", False, False),
        ("bf16", "cpu", False, False),
    ],
)
def test_bf16_on_a_gpu_without_units_for_it_is_a_warning(precision, device, has_units, warned, monkeypatch):
    """torch computes bf16 on a T4 and a V100 too, by way of fp32."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_units or including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    given = option_parser.read_options(DdpJobOptions, ["--precision", precision])
    said = skeleton.precision_warning(given, torch.device(device))
    assert said.startswith("warning: option --precision: Tesla T4 has no units for bf16") is warned
    assert bool(said) is warned
