"""A program and its arguments arrive whole, whatever they contain."""

from __future__ import annotations

import dataclasses
import json
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.common.errors import UserError
from algorun.job.hyperparameter_groups import Hyperparameters
from algorun_client.aws.service_model import input_shape
from algorun_client.request import limits
from algorun_client.request.model import Kind
from algorun_client.submit.read.program import ARGS_FILE, SCRIPT, started
from tests.client.submit.specs import request, spec
from tests.conftest import examples


def arrived(made, added):
    """The arguments as the launcher reads them."""
    own = Hyperparameters.parse(made.create["HyperParameters"]).own
    if "algorun_args_file" in made.create["HyperParameters"]:
        assert own.args is None
        return tuple(json.loads(added[ARGS_FILE]))
    return own.args


def both(task):
    made = request(task)
    run = started(task.program, ("train.py",))
    return made, run.with_args_file().added


HOSTILE = st.text(
    st.one_of(
        st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), st.sampled_from("\"'$`\\\n\r\t{}[]!*é ")
    )
)


@given(st.lists(HOSTILE, max_size=6))
@examples(300)
def test_hostile_arguments_arrive_whole(words):
    made, added = both(spec("train.py", *words))
    assert arrived(made, added) == tuple(words)
    assert all("\n" not in value for value in made.create["HyperParameters"].values())  # SageMaker refuses it


@pytest.mark.parametrize("word", ["x" * 3_000, "\n" * 1_300, "é" * 500, "'\"$(rm -rf /)" * 300])
def test_a_long_argument_goes_into_a_file(word):
    made, added = both(spec("train.py", "--text", word))
    assert made.create["HyperParameters"]["algorun_args_file"] == ARGS_FILE
    assert arrived(made, added) == ("--text", word)
    limits.check(input_shape(Kind.TRAINING), made.create)


@given(st.lists(HOSTILE, min_size=1, max_size=100))
@examples(100)
def test_a_processing_job_gets_its_arguments_as_words_or_in_a_file(words):
    task = spec("train.py", *words, kind="processing")
    entrypoint = request(task).create["AppSpecification"]["ContainerEntrypoint"]
    assert len(entrypoint) <= 100
    assert max(map(len, entrypoint)) <= 256
    at = entrypoint.index("train.py")  # comes after the launcher's own options
    assert entrypoint[at + 1 :] == [] if "--args-file" in entrypoint[:at] else words == entrypoint[at + 1 :]


@given(HOSTILE.filter(lambda text: text and len(text) < 200))
@examples(100)
def test_a_program_of_any_name_arrives(name):
    task = spec("train.py")
    task = dataclasses.replace(task, program=dataclasses.replace(task.program, name=f"dir/{name}"))
    try:
        made = request(task, names=(f"dir/{name}",))
    except UserError:
        return  # a path such as dir/../x is no file of the code
    assert Hyperparameters.parse(made.create["HyperParameters"]).platform.program == f"dir/{name}"


@pytest.mark.parametrize("command", ["echo $HOME 'a b' && exit 3", "printf '%s' \"$(echo x)\"\nexit 3"])
def test_a_shell_command_is_a_file_so_nothing_quotes_it(command, tmp_path):
    run = started(spec(shell=command).program, ())
    (tmp_path / "program.sh").write_bytes(run.added[SCRIPT])
    ours = subprocess.run(["bash", tmp_path / "program.sh"], capture_output=True, check=False)
    plain = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout) == (3, plain.stdout)


def test_a_command_of_the_image_gets_its_words(tmp_path):
    run = started(spec("printf", "%s|", "a b", "$x", "'").program, ("train.py",))
    assert run.program == SCRIPT
    (tmp_path / "program.sh").write_bytes(run.added[SCRIPT])
    done = subprocess.run(["bash", tmp_path / "program.sh", *run.args], capture_output=True, check=True, text=True)
    assert done.stdout == "a b|$x|'|"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["trian.py"], "PROGRAM: 'trian.py' is not among the 4 files of the code; .*fix: did you mean 'train.py'?"),
        (["src/main.py"], "PROGRAM: 'src/main.py' is not among the 4 files"),
        (["ddpp"], "fix: did you mean 'ddp'?"),
    ],
)
def test_a_program_that_is_not_there(words, text):
    with pytest.raises(UserError, match=text.replace("?", r"\?")):
        request(spec(*words))


def test_modules():
    assert request(spec("--x", module="package.main")).create["HyperParameters"]["sagemaker_program"] == "package.main"
    assert request(spec("-c", "1", module="timeit")).create["HyperParameters"]["sagemaker_program"] == SCRIPT
