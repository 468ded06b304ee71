"""`[task.NAME.tune]`: the space, its values, and what is refused."""

from __future__ import annotations

import pytest

from algorun.common.errors import UserError
from algorun_client.submit.read import job_file, tune
from algorun_client.submit.read.sweep import Goal
from algorun_client.submit.read.tune import Method
from tests.client.submit.specs import FOLDER, spec

RUN = '[task.train]\nrun = ["main.py", "--lr", "1", "--batch-size=8"]\n'
TUNE = 'goal = "max:accuracy"\npoints = 4\n'
LR = "space.lr = { from = 1e-5, to = 0.1, log = true }\n"


def tune_of(text: str) -> tune.TaskTune:
    return job_file.parse((RUN + "[task.train.tune]\n" + text).encode(), "algorun.toml", FOLDER).tunes["train"]


def test_a_table_says_the_goal_the_space_and_how_points_are_chosen():
    found = tune_of(TUNE + LR + "space.batch-size = { values = [16, 32, 64] }")
    assert (found.goal, found.points, found.parallel, found.method, found.seed) == (
        Goal("accuracy", lowest=False), 4, 1, Method.BAYESIAN, 0,
    )  # fmt: skip
    assert found.size is None
    assert {name: each.ends for name, each in found.space.items()} == {
        "lr": ("1e-05", "0.1"),
        "batch-size": ("16", "64"),
    }
    first, last = tune.check_space(spec(toml=RUN, task="train"), found)
    assert first.program.args == ("--lr", "1e-05", "--batch-size=16")
    assert (first.task, last.task) == ("train.lr-1e-05.batch-size-16", "train.lr-0.1.batch-size-64")
    assert first.sweep_of == "train"


@pytest.mark.parametrize(
    ("space", "value", "text"),
    [
        ("{ from = 1e-5, to = 0.1, log = true }", 0.00012345678, "0.000123457"),
        ("{ from = 0, to = 1.0 }", 1 / 3, "0.333333"),
        ("{ from = 1.0000001, to = 1.0000002 }", 1.00000013579, "1.00000013579"),
        ("{ from = 0.123454321, to = 0.2 }", 0.123454321, "0.123454321"),  # never outside of the range
        ("{ from = 1, to = 8 }", 3, "3"),
        ("{ from = -8, to = 8.0 }", -8.0, "-8.0"),
    ],
)
def test_a_value_has_as_many_digits_as_its_range_needs(space, value, text):
    found = tune_of(f"{TUNE}space.lr = {space}").space["lr"]
    assert found.text(value) == text
    assert found.number(text) == pytest.approx(value, rel=1e-5)


def test_by_the_median_jobs_are_looked_at_after_equal_numbers_of_values():
    assert tune_of(f'{TUNE}{LR}stop = "median"\nsteps = 10\nleast = 3').looks == (3, 6, 9)
    assert tune_of(f'{TUNE}{LR}stop = "median"\nsteps = 4').looks == (1, 2, 3)
    assert tune_of(f"{TUNE}{LR}").looks == ()


def test_hyperband_looks_at_jobs_less_and_less_often():
    assert tune_of(f'{TUNE}{LR}method = "hyperband"\nsteps = 27').looks == (1, 3, 9)
    assert tune_of(f'{TUNE}{LR}method = "hyperband"\nsteps = 50\nleast = 5\nfactor = 2').looks == (5, 10, 20, 40)
    assert tune_of(TUNE + LR).looks == ()


def test_a_point_belongs_to_the_table_of_its_task():
    file = job_file.parse((RUN + "[task.train.tune]\n" + TUNE + LR).encode(), "algorun.toml", FOLDER)
    assert file.layer_of("train.lr-0.01", must_exist=False) is file.tasks["train"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (LR + "points = 4", r'tune\]: has no goal; fix: goal = "max:accuracy"'),
        (LR + 'goal = "max:a"', "has no points; fix: points = 30"),
        (TUNE, "has no space; fix: space = { lr"),
        (TUNE + "space = {}", r"space: \{\} is not a table of parameters"),
        (TUNE + LR + "method = 'bayes'", "'bayes' is unknown; allowed: random, bayesian, hyperband; fix: did you mean 'bayesian'"),
        (TUNE + LR + "point = 3", "unknown key 'point'.*did you mean 'points'"),
        (LR + "goal = 'speed'\npoints = 4", "goal: 'speed' does not say which way is better; allowed: max:METRIC or min:METRIC"),
        (LR + "goal = 'max:a'\npoints = 501", "points: 501.*500"),
        (TUNE + LR + "parallel = 0", "parallel: 0"),
        (TUNE + LR + "seed = -1", "seed: -1"),
        (TUNE + "space.lr = 3", "space.lr: 3 is no range and no choice; allowed: { from = 1e-5, to = 0.1, log = true } or { values"),
        (TUNE + "space.lr = { from = 1 }", "space.lr: has no to"),
        (TUNE + "space.lr = { from = 1, to = 1 }", "from 1 to 1 is no range; fix: from has to be less than to"),
        (TUNE + "space.lr = { from = 0, to = 1.5, log = true }", "a logarithm of 0 does not exist"),
        (TUNE + "space.lr = { from = nan, to = 1 }", "space.lr from: nan is not a number"),
        (TUNE + "space.lr = { from = true, to = 8 }", "space.lr from: True is not a number"),
        (TUNE + "space.lr = { from = '1', to = 8 }", "space.lr from: '1' is not a number"),
        (TUNE + "space.lr = { from = 1, to = 8, log = 1 }", "space.lr log: 1 is not a boolean"),
        (TUNE + "space.lr = { from = 1, to = 8, values = [1, 2] }", "space.lr: unknown key 'from'; allowed: values"),
        (TUNE + "space.lr = { values = [1] }", r"values: \[1\] is no list of at least 2 values"),
        (TUNE + "space.lr = { values = [1, '1'] }", "'1' comes twice"),
        (TUNE + "space.lr = { values = [1, [2]] }", r"\[2\] is not a value"),
        (TUNE + 'space.lr = { values = ["a\\u0000", "b"] }', "a value has a zero byte"),
        (TUNE + "space.'a=b' = { values = [1, 2] }", "'a=b' is not the name of a parameter"),
        (TUNE + "space.lr = { values = [1, 2, 3] }", "4 points, and the space has 3; allowed: up to 3; fix: points = 3"),
        (TUNE + "space.epochs = { from = 1, to = 8 }", "'epochs' is no parameter of task 'train'; allowed: an option --epochs"),
        (TUNE + LR + "steps = 9", "steps: is for method 'hyperband', or for stop = 'median'; fix: drop it"),
        (TUNE + LR + "stop = 'median'\nsteps = 9\nfactor = 2", "factor: is for method 'hyperband'; fix: drop it"),
        (TUNE + LR + "stop = 'median'", "stop = 'median' has no steps; fix: steps = 27"),
        (TUNE + LR + "stop = 'mean'\nsteps = 9", "stop: 'mean' is unknown; allowed: median"),
        (TUNE + LR + "stop = true\nsteps = 9", "stop: True is unknown; allowed: median"),
        (TUNE + LR + "stop = 'median'\nsteps = 9\nleast = 9", "least: 9"),
        (TUNE + LR + "stop = 'median'\nsteps = 2000", "least: a job of 2000 steps would be compared after each 1; allowed: up to 1,000 comparisons of a job; fix: least = 2"),
        (TUNE + LR + "stop = 'median'\nsteps = 9\nmethod = 'hyperband'", "stop: hyperband stops jobs by a rule of its own; fix: drop one"),
        (TUNE + LR + "method = 'hyperband'", "hyperband has no steps; fix: steps = 27: how often a job prints"),
        (TUNE + LR + "method = 'hyperband'\nsteps = 1", "steps: 1"),
        (TUNE + LR + "method = 'hyperband'\nsteps = 9\nleast = 9", "least: 9"),
        (TUNE + LR + "method = 'hyperband'\nsteps = 9\nfactor = 1", "factor: 1"),
        (TUNE + LR + "[task.train.sweep]\ngrid.lr = [1]", r"\[task.train\]: has both a sweep and a tune table; fix: drop one"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_error(text, error):
    with pytest.raises(UserError, match=error):
        tune.check_space(spec(toml=RUN, task="train"), tune_of(text))


def test_a_tune_table_is_no_option():
    with pytest.raises(UserError, match=r"tune\]: 3 is not a table"):
        job_file.parse(b"[task.t]\ntune = 3", "algorun.toml", FOLDER)
    with pytest.raises(UserError, match="unknown key 'tune'"):
        job_file.parse(b"[tune]\npoints = 3", "algorun.toml", FOLDER)
