"""`{task:TASK/METRIC}` in a program's words."""

from __future__ import annotations

import pytest

from algorun.common.errors import UserError
from algorun_client.submit.read.source_tasks import Reference, filled, references
from tests.client.submit.specs import FACTS, request, spec

ACCURACY, LOSS = Reference("train", "accuracy"), Reference("train", "validation:loss")


def test_values_stand_in_arguments_shells_and_hyperparameters():
    task = spec("a.py", "--than", "{task:train/accuracy}", "--x={task:train/validation:loss},")
    assert list(references(task)) == [ACCURACY, LOSS]
    made = filled(task, {ACCURACY: "0.93", LOSS: "1e-3"})
    assert (made.program.args, made.unfilled) == (("--than", "0.93", "--x=1e-3,"), ())
    shell = spec(shell="echo {task:train/accuracy} ${HOME} {a,b}")
    assert filled(shell, {ACCURACY: "1"}).program.shell == "echo 1 ${HOME} {a,b}"
    table = spec("a.py", hyperparameters=["t={task:train/accuracy}"])
    assert filled(table, {ACCURACY: "1"}).hyperparameters == {"t": "1"}


def test_a_literal_is_written_with_two_braces():
    task = spec("a.py", "{{task:train/accuracy}", "{{task:", '{"task": 1}')
    assert references(task) == {}
    assert filled(task, {}).program.args == ("{task:train/accuracy}", "{task:", '{"task": 1}')


@pytest.mark.parametrize(
    "word", ["{task:train}", "{task:train/}", "{task:/accuracy}", "{task:train/accuracy", "{task: a/b}"]
)
def test_a_word_that_is_none_is_refused(word):
    with pytest.raises(
        UserError, match=r"arguments of task 'a': .* is not \{task:TASK/METRIC\}; allowed: .*; fix: \{\{task: for"
    ):
        references(spec("a.py", word))


def test_a_value_that_is_not_known_yet_is_unknown_in_the_request():
    task = filled(spec("train.py", "{task:train/accuracy}", task="eval"), {})
    made = request(task, FACTS)
    assert "HyperParameters.algorun_args" in made.unknown
    assert request(filled(spec("train.py", "1"), {}), FACTS).unknown == ()
