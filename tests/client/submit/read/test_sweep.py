"""`[task.NAME.sweep]`: which points, their names and words, and what is refused."""

from __future__ import annotations

import pytest

from algorun.common.errors import UserError
from algorun_client.request.names import LONGEST, checked
from algorun_client.submit.assemble.assemble import task_address
from algorun_client.submit.look_up.facts import Facts
from algorun_client.submit.read import job_file, sweep
from algorun_client.submit.read.sweep import Goal
from tests.client.submit.specs import FOLDER, spec

RUN = '[task.train]\nrun = ["main.py", "--lr", "1", "--batch-size=8"]\n[task.train.sweep]\n'


def sweep_of(text: str):
    return job_file.parse((RUN + text).encode(), "algorun.toml", FOLDER).sweeps["train"]


def specs_of(text: str, **options: object):
    task = spec(toml=RUN + text, **options)
    return [sweep.point_spec(task, sweep_of(text), point) for point in sweep_of(text).points]


def test_a_grid_has_every_combination_and_each_point_is_a_task():
    made = specs_of("grid = { lr = [0.1, 1e-2], batch_size = [8, 16] }\nparallel = 2\nbest = 'max:acc'")
    assert [each.program.args for each in made] == [
        ("--lr", "0.1", "--batch-size=8"),
        ("--lr", "0.1", "--batch-size=16"),
        ("--lr", "0.01", "--batch-size=8"),
        ("--lr", "0.01", "--batch-size=16"),
    ]
    assert [each.task for each in made][:2] == ["train.lr-0.1.batch_size-8", "train.lr-0.1.batch_size-16"]
    asked = sweep_of("grid = { lr = [0.1] }\nparallel = 2\nbest = 'max:acc'")
    assert (asked.parallel, asked.best, asked.names) == (2, Goal("acc", lowest=False), ("lr",))


def test_a_list_has_the_points_that_it_names():
    made = specs_of('list = [{ lr = 0.1, batch-size = 8 }, { batch-size = 16, lr = "1e-2" }]')
    assert [each.program.args for each in made] == [
        ("--lr", "0.1", "--batch-size=8"),
        ("--lr", "1e-2", "--batch-size=16"),
    ]


def test_points_share_code_and_inputs_and_nothing_else():
    first, second = (task_address(each, Facts(bucket="b")) for each in specs_of("grid = { lr = [1, 2] }"))
    swept = task_address(spec(toml=RUN + "grid = { lr = [1, 2] }"), Facts(bucket="b"))
    assert first.code("x") == second.code("x") == swept.code("x")
    assert first.input("d", "f") == second.input("d", "f") == swept.input("d", "f")
    assert (
        len({each.state for each in (first, second, swept)}) == len({each.uri for each in (first, second, swept)}) == 3
    )


def test_names_follow_from_parameters_alone_and_are_names():
    assert sweep.point_task("train", {"lr": "0.1"}) == "train.lr-0.1"
    names = {
        sweep.point_task(task, {"lr": value})
        for task in ("train", "t" * 48)
        for value in ("a b", "a-b", "a/b", "..", "x" * 99, "", "é", "-", "1.")
    }
    assert len(names) == 18
    for name in names:
        assert checked("--task", name) == name
        assert len(name) <= LONGEST


def test_a_parameter_is_a_marked_word_a_hyperparameter_or_an_option():
    text = '[task.t]\nrun = ["a.py", "-b", "3", "--x={sweep:lr}"]\nhyperparameters = { seed = 1 }\n'
    task = spec(toml=text, task="t")
    asked = sweep.parse("w", {"list": [{"lr": 2, "seed": 7, "b": 4}]})
    made = sweep.point_spec(task, asked, asked.points[0])
    assert made.program.args == ("-b", "4", "--x=2")
    assert made.hyperparameters == {"seed": "7"}


@pytest.mark.parametrize("value", ["1", "{sweep:version}"])
def test_a_text_of_a_sweep_stays_a_text_in_a_hyperparameter(value):
    """Python 3.10 is not 3.1. Numbers and booleans stay what they are."""
    task = spec(toml=f'[task.t]\nrun = ["a.py"]\nhyperparameters = {{ version = "{value}" }}', task="t")
    asked = sweep.parse("w", {"grid": {"version": ["3.10", "3.9", 1e-3, True, "null"]}})
    made = [sweep.point_spec(task, asked, point).hyperparameters["version"] for point in asked.points]
    assert made == ['"3.10"', "3.9", "0.001", "true", '"null"']


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("grid = { epochs = [1] }", r"'epochs' is no parameter of task 'train'; allowed: an option --epochs .*; fix: add \"--epochs\", \"1\" to run"),
        ("grid = { main = [1] }", "'main' is no parameter"),
        ("", r"grid and list are both absent; allowed: one of them; fix: grid = \{ lr"),
        ("grid = { lr = [1] }\nlist = [{ lr = 1 }]", "grid and list are both given"),
        ("grid = { lr = [1, 1] }", "lr=1 comes twice"),
        ("grid = { lr = [] }", r"grid.lr: \[\] is not a list of values"),
        ("grid = { lr = 1 }", "grid.lr: 1 is not a list"),
        ("grid = { lr = [[1]] }", r"\[1\] is not a value"),
        ('grid = { lr = ["a\\u0000"] }', r"grid.lr: a value has a zero byte.*; fix: remove \\u0000"),
        ("grid = { lr = ['{task:data/lr}'] }", "grid.lr: '{task:data/lr}' is a value of another task; fix: write it in run"),
        (f"grid = {{ lr = {list(range(100))}, batch-size = {list(range(1, 101))} }}", "10000 points; allowed: up to 500; fix: take fewer"),
        ("list = []", r"list: \[\] is not a list of tables"),
        ("list = [{ lr = 1 }, { batch-size = 1 }]", "'batch-size' is in some points only"),
        (f"grid = {{ lr = {list(range(501))} }}", "501 points; allowed: up to 500"),
        ("grid = { lr = [1] }\nparalel = 1", "unknown key 'paralel'.*did you mean 'parallel'"),
        ("grid = { lr = [1] }\nparallel = 0", "parallel: 0"),
        ("grid = { lr = [1] }\nbest = 'speed'", "'speed' does not say which way is better; allowed: max:METRIC or min:METRIC; fix: max:speed, or min:speed"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_error(text, error):
    with pytest.raises(UserError, match=error):
        specs_of(text)


def test_a_marked_word_without_a_parameter_is_refused():
    task = spec(toml='[task.t]\nrun = ["a.py", "{sweep:lr}", "{sweep:rl}"]', task="t")
    asked = sweep.parse("w", {"grid": {"lr": [1]}})
    with pytest.raises(UserError, match=r"task 't' has the word \{sweep:rl\}; allowed: lr"):
        sweep.point_spec(task, asked, asked.points[0])


def test_a_sweep_is_no_option():
    with pytest.raises(UserError, match=r"sweep\]: 3 is not a table"):
        job_file.parse(b"[task.t]\nsweep = 3", "algorun.toml", FOLDER)
    with pytest.raises(UserError, match="unknown key 'sweep'"):
        job_file.parse(b"sweep = { grid = { lr = [1] } }", "algorun.toml", FOLDER)


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("max:loss", Goal("loss", lowest=False)),
        ("min:a:b", Goal("a:b", lowest=True)),
        ("validation:accuracy", Goal("validation:accuracy", lowest=False)),
        ("val_loss", None),
        ("train:loss", Goal("train:loss", lowest=True)),
    ],
)
def test_a_goal_says_which_way_is_better_or_its_name_does(text, goal):
    if goal is None:
        goal = Goal(text, lowest=True)
    assert sweep.parse_goal("--best", text) == goal
