"""The order of a chain, and what is wrong with one."""

from __future__ import annotations

import pytest

from algorun.common.errors import UserError
from algorun_client.submit.chain import chain
from algorun_client.submit.read import job_file
from algorun_client.submit.read.source_tasks import known_tasks
from tests.client.submit.specs import FOLDER, spec

FILE = """
[task.eval]
run = ["eval.py", "--than", "{task:train/accuracy}"]
in.model = "task:train/model,extract"
[task.train]
run = ["main.py", "--lr", "1"]
in.train = "task:data/output/x"
metrics.accuracy = "acc ([0-9.]+)"
[task.data]
kind = "processing"
run = ["bash", "make.sh"]
[task.other]
run = ["a.py"]
"""
SWEEP = '[task.train.sweep]\ngrid = { lr = [1, 2] }\nbest = "accuracy"\n'


def made(text: str, *tables: str) -> chain.Chain:
    file = job_file.parse(text.encode(), "algorun.toml", FOLDER)
    specs = {task: spec(toml=text, task=task) for task in file.tasks}
    return chain.make(specs, file.sweeps, known_tasks(file), tables or list(specs))


def test_a_task_comes_after_those_that_it_reads():
    found = made(FILE)
    assert [node.spec.task for node in found.nodes] == ["data", "other", "train", "eval"]
    assert [node.after for node in found.nodes] == [(), (), ("data",), ("train",)]
    assert [node.after for node in made(FILE, "eval", "train").nodes] == [(), ("train",)]


def test_the_points_of_a_sweep_are_jobs_of_the_chain():
    found = made(FILE + SWEEP)
    assert [node.spec.task for node in found.nodes] == ["data", "other", "train.lr-1", "train.lr-2", "eval"]
    assert {node.after for node in found.of_table("train")} == {("data",)}
    assert found.parallel == {"train": 2}


def test_a_point_can_be_read_by_its_name():
    text = FILE + SWEEP + '[task.look]\nrun = ["a.py"]\nin.m = "task:train.lr-1/model"\nin.s = "task:look/state"\n'
    assert made(text).nodes[-1].after == ("train",)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            '[task.data2]\nrun = ["a.py"]\nin.x = "task:eval2/output"\n[task.eval2]\nrun = ["a.py"]\nin.x = "task:data2/output"\n',
            r"algorun.toml \[task\.\w+\] in.x: tasks wait for each other: (data2 needs eval2 needs data2|eval2 needs data2 needs eval2); fix: ",
        ),
        ('[task.me]\nrun = ["a.py"]\nin.x = "task:me/output"\n', "tasks wait for each other: me needs me"),
        ('[task.m]\nrun = ["a.py", "{task:train/acuracy}"]\n', r"task 'train' has no metric 'acuracy'; .*did you mean 'accuracy'"),
        ('[task.m]\nrun = ["a.py", "{task:train/x}"]\n', r'fix: add metrics.x = "REGEX" to \[task.train\]'),
        (SWEEP.replace('best = "accuracy"', ""), "task 'train' is a sweep, and does not say which of its points is read"),
        (SWEEP.replace('"accuracy"', '"max:top9"'), r"\[task.train.sweep\] best: task 'train' has no metric 'top9'"),
        (SWEEP + '[task."train.lr-1"]\nrun = ["a.py"]\n', r"two tasks are called 'train.lr-1': see \[task.train.lr-1\] and \[task.train\]; fix: rename"),
        ('[task.s]\nrun = ["a.py", "--a", "1", "--b", "2"]\n[task.s.sweep]\nlist = [{ a = "1.b-2", b = "3" }, { a = "1", b = "2.b-3" }]\n',
         r"\[task.s.sweep\]: two points are called 's.a-1.b-2.b-3'; fix: change one of their values"),
        ('[task.m]\nbucket = "other"\nrun = ["a.py"]\nin.x = "task:train/model"\n',
         r"in.x: task 'm' has bucket other, and task 'train', which it reads, none; allowed: one bucket for .*; fix: give bucket at the top"),
        (SWEEP + '[task.m]\nrun = ["a.py"]\nin.s = "task:train/state"\n', "each of its points has a state of its own"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_error(text, error):
    with pytest.raises(UserError, match=error):
        made(FILE + text)


def test_two_tables_of_one_name_are_refused():
    with pytest.raises(
        UserError, match="algorun.toml: two tasks are called 'data' at line 14; fix: rename one of the two"
    ):
        made(FILE + '[task.data]\nrun = ["a.py"]\n')


@pytest.mark.parametrize("task", ["train", "train.lr-1", "eval"])
def test_a_point_of_a_sweep_and_a_task_share_no_name_whichever_is_submitted(task):
    text = FILE + SWEEP + '[task."train.lr-1"]\nrun = ["a.py"]\n'
    with pytest.raises(
        UserError, match=r"two tasks are called 'train.lr-1': see \[task.train.lr-1\] and \[task.train\]"
    ):
        made(text, task)


TUNE = '[task.t.tune]\ngoal = "min:loss"\npoints = 3\nspace = { lr = { from = 0.1, to = 1.0 } }\n'


@pytest.mark.parametrize("key", ["until_done = true", 'instance = "ml.g5.xlargex1,ml.g5.2xlargex1"'])
def test_a_point_of_a_tuning_has_one_job(key):
    text = f'[task.t]\nrun = ["a.py", "--lr", "1"]\nmetrics.loss = "loss ([0-9.]+)"\n{key}\n{TUNE}'
    file = job_file.parse(text.encode(), "algorun.toml", FOLDER)
    with pytest.raises(UserError, match="a point of a tuning has one job; fix: drop until_done, and name one"):
        chain.make({"t": spec(toml=text, task="t")}, file.sweeps, known_tasks(file), ["t"], file.tunes)
