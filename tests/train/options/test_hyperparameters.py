"""Hyperparameters as the SDKs write them, up to the options of a job: the right value, or one error that names it."""

import argparse
import json
from pathlib import Path

import pytest

from algorun.job import hyperparameters, modeltrainer
from algorun.job.hyperparameter_groups import Hyperparameters
from algorun_train.common.errors import UserError
from algorun_train.options import mp_parameters, option_parser
from algorun_train.options.job_options import DdpJobOptions, PipelineJobOptions


def as_json(value: object) -> str:
    """A framework estimator, or an Estimator with source_dir."""
    return json.dumps(value)


def as_str(value: object) -> str:
    """An Estimator without source_dir."""
    return str(value)


def as_raw(value: object) -> str:
    """SDK v3: texts as they are, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


ENCODINGS = {"json": (as_json, False), "str": (as_str, False), "v3": (as_raw, False), "v3 driver": (as_raw, True)}


def words(given: dict[str, object], encoding: str) -> list[str]:
    """The words that a job gets for these hyperparameters of its user."""
    encode, is_driver = ENCODINGS[encoding]
    user = Hyperparameters.parse({key: encode(value) for key, value in given.items()}).user
    return modeltrainer.argv(user) if is_driver else hyperparameters.argv(user)


def read(*argv: str) -> DdpJobOptions:
    return option_parser.read_options(DdpJobOptions, list(argv))


def refusal(*argv: str) -> str:
    with pytest.raises(UserError) as caught:
        read(*argv)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def from_toml(folder: Path, text: str, encoding: str = "utf-8") -> DdpJobOptions:
    file = folder / "job.toml"
    file.write_bytes(text.encode(encoding))
    return read("--config", str(file))


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    ("key", "value"),
    [("compile", True), ("compile", False), ("epochs", 3), ("lr", 1e-05), ("lr", 3), ("weight-decay", 0.0), ("seed", 2**32 - 1),
     ("optimizer", "sgd"), ("model_dir", "/opt/ml/a 'b' \"c\", d=e"), ("b", 8), ("augment", "shift+flip")],
)  # fmt: skip
def test_a_value_means_the_same_in_all_encodings(encoding, key, value):
    name = {"b": "batch_size"}.get(key, key.replace("-", "_"))
    found = getattr(option_parser.read_options(DdpJobOptions, words({key: value}, encoding)), name)
    assert found == (Path(value) if name == "model_dir" else value)
    assert isinstance(found, bool) == isinstance(value, bool)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "key", ["lr", "compile", "checkpoint_dir", "model", "lora_targets", "epochs", "matmul_precision", "config"]
)
def test_none_is_the_default_in_all_encodings(encoding, key):
    assert option_parser.read_options(DdpJobOptions, words({key: None}, encoding)) == DdpJobOptions()


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name != "json"])
def test_none_is_not_taken_for_a_default_where_it_may_mean_a_choice(encoding):
    given = words({"augment": None}, encoding)
    if given[1]:
        assert "allowed: none, shift, flip, shift+flip" in refusal(*given)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_empty_text_is_the_default(encoding):
    assert option_parser.read_options(DdpJobOptions, words({"init_from": ""}, encoding)) == DdpJobOptions()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_list_of_modules_is_read_as_the_words_that_it_holds(encoding):
    given = words({"lora_targets": ["q_proj", "v_proj"], "lora": 2}, encoding)
    assert option_parser.read_options(DdpJobOptions, given).lora_targets == "q_proj,v_proj"


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("value", [[0.1, 0.2], {"a": 1}, "ParameterFloat(name='lr')"])
def test_a_list_a_table_and_an_object_of_the_sdk_are_refused(encoding, value):
    assert "option --lr: " in refusal(*words({"lr": value}, encoding))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e3", 1000),
        ("3.0", 3),
        ("32.0", 32),
        ("5.0e0", 5),
        ("1_000", 1000),
        (" 7 ", 7),
        ("007", 7),
        ("+2", 2),
        ("٣", 3),
    ],
)
def test_whole_numbers_of_tuning_jobs_and_people(text, value):
    assert read("--epochs", text).epochs == value


@pytest.mark.parametrize(
    "text",
    [
        "5.7",
        "1e-1",
        "0x10",
        "5,000",
        "1e400",
        "inf",
        "nan",
        "True",
        "-3",
        "1e23",
        "9007199254740993.0",
        "9" * 5000,
        "2147483648",
    ],
)
def test_nothing_is_rounded_or_cut_to_a_whole_number(text):
    assert "option --epochs: " in refusal("--epochs", text)


def test_a_long_value_is_cut_in_the_message():
    assert len(refusal("--lr", "x" * 100_000)) < 500


@pytest.mark.parametrize("text", ["1e-5", "1E-5", "0.00001", "1.0e-05"])
def test_a_learning_rate_in_any_notation_is_a_number(tmp_path, text):
    assert read("--lr", text).lr == 1e-5
    assert from_toml(tmp_path, f"lr = {text}").lr == 1e-5
    assert from_toml(tmp_path, f'lr = "{text}"').lr == 1e-5


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "-inf", "Infinity", "0,1", "10%", "1e-400", "0"])
def test_a_learning_rate_that_is_none_is_refused(text):
    assert "option --lr: " in refusal("--lr", text)
    assert "option --lr: " in refusal(f"--lr={text}")


@pytest.mark.parametrize("text", ["true", "TRUE", "True", "1", "yes", "on", "false", "False", "0", "no", "off"])
def test_booleans_mean_what_they_say_unlike_bool_of_argparse(text):
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", type=bool)
    assert parser.parse_args(["--compile", text]).compile is True  # as SageMaker's documentation advises
    assert read("--compile", text).compile == (text.lower() in ("true", "1", "yes", "on"))


@pytest.mark.parametrize("text", ["maybe", "2", "1.0", "'True'", "t"])
def test_another_boolean_is_refused(text):
    assert "allowed: True or False" in refusal("--compile", text)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--checkpoint-dir", "--merge"), "option --checkpoint-dir has no value, the next word is '--merge'"),
        (("--train", "-b", "8"), "option --train has no value, the next word is '-b'"),
        (("--model", "--lr", "1"), "option --model has no value"),
        (("--lr",), "option --lr has no value; fix: give it one, as in --lr=VALUE"),
        (("--config",), "option --config has no value; fix: give it one, as in --config=VALUE"),
        (("--config", "--lr", "1"), "option --config has no value, the next word is '--lr'"),
    ],
)
def test_an_option_is_not_taken_for_the_value_of_the_one_before(argv, said):
    assert said in refusal(*argv)


def test_a_flag_before_a_short_option_is_a_flag():
    assert (read("--compile", "-b", "8").compile, read("--compile", "-b", "8").batch_size) == (True, 8)


@pytest.mark.parametrize(
    ("argv", "fix"),
    [
        (("--learning-rate", "1"), "--lr?"), (("--learning_rate=1",), "--lr?"), (("--LR", "1"), "--lr?"),
        (("--num_train_epochs", "3"), "--epochs?"), (("--per_device_train_batch_size", "8"), "--batch-size?"),
        (("--gradient-accumulation-steps", "2"), "--accumulation?"), (("--no-compile",), "--compile False"),
        (("--no_scale_lr", "True"), "--scale-lr False"), (("--epoch",), "--epochs?"), (("--batch", "8"), "--batch-size?"),
    ],
)  # fmt: skip
def test_an_unknown_option_is_refused_with_the_one_that_was_meant(argv, fix):
    text = refusal(*argv)
    assert text.startswith("unknown option ")
    assert text.endswith(fix)


@pytest.mark.parametrize(
    "name", [f"--{name[:-1]}" for name in ("epochs", "weight-decay", "checkpoint-dir", "skip-bad-samples")]
)
def test_an_abbreviation_is_no_option(name):
    assert "unknown option" in refusal(name, "1")


@pytest.mark.parametrize("path", ["~/images", "$HOME/images", "${SM_CHANNEL_TRAIN}", "/data/$USER"])
@pytest.mark.parametrize("option", ["--train", "--checkpoint-dir"])
def test_a_path_that_a_shell_would_have_replaced_is_refused(option, path):
    text = refusal(option, path)
    assert text.startswith(f"option {option}: {path!r} from the command line: no shell replaces ~ and variables there")


def test_names_of_one_option_with_two_values_are_refused(tmp_path):
    for encoding in ENCODINGS:
        assert "given twice, with '8' and '16'" in refusal(*words({"batch-size": 8, "batch_size": 16}, encoding))
    for text in ("batch-size = 8\nbatch_size = 16", "b = 8\nbatch_size = 16"):
        with pytest.raises(
            UserError, match=r"batch_size and another name of --batch-size have different values, 16 and 8"
        ):
            from_toml(tmp_path, text)
    assert from_toml(tmp_path, "b = 8\nbatch_size = 8").batch_size == 8
    with pytest.raises(UserError, match="not valid TOML"):
        from_toml(tmp_path, "lr = 1\nlr = 2")


def test_toml_files_of_other_editors_and_types(tmp_path):
    assert from_toml(tmp_path, "\ufefflr = 0.5\r\nepochs = 1_000\r\n").lr == 0.5
    assert from_toml(tmp_path, 'lora = 2\nlora_targets = ["q_proj", "v_proj"]').lora_targets == "q_proj,v_proj"
    for text in ("epochs = 5.7", "epochs = true", "lr = inf", "lr = nan", "lr = 1979-05-27", "lr = [1]", "[lr]\nx = 1"):
        with pytest.raises(UserError, match="fix:"):
            from_toml(tmp_path, text)
    with pytest.raises(UserError, match="is not valid TOML: 'utf-8' codec"):
        from_toml(tmp_path, "lr = 0.5", "utf-16")


@pytest.mark.parametrize(
    "text",
    ['{"partitions": 2, "partitions": 4}', "partitions=2,partitions=4", '{"ddp": true, "ddp": false}'],
)
def test_mp_parameters_that_are_given_twice_are_refused(text):
    with pytest.raises(UserError, match="is given twice, with .* and .*; allowed: once; fix: keep one of them"):
        mp_parameters.parse(text)


def test_mp_parameters_without_an_end_are_refused():
    with pytest.raises(UserError, match="sdp_gradient_clipping = Infinity; allowed: a number of at least 0"):
        mp_parameters.parse('{"sdp_gradient_clipping": Infinity}')


@pytest.mark.parametrize("encoding", ["json", "v3", "v3 driver"])
def test_mp_parameters_arrive_as_a_table(encoding):
    given = words({"mp_parameters": {"partitions": 2, "microbatches": 4, "ddp": True}}, encoding)
    options, _ = mp_parameters.apply(option_parser.read_options(PipelineJobOptions, given))
    assert (options.pp, options.microbatches) == (2, 4)


def test_mp_parameters_in_pythons_notation_are_refused():
    given = words({"mp_parameters": {"partitions": 2}}, "str")
    with pytest.raises(
        UserError, match='mp_parameters: not JSON: .*; fix: a JSON object such as {"partitions": 2}, or'
    ):
        mp_parameters.apply(option_parser.read_options(PipelineJobOptions, given))
