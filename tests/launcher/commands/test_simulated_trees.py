"""The folder of a simulation: one at a time, and nothing of the runs before is lost without a word."""

from __future__ import annotations

import json
import os

import pytest

from algorun.commands import simulated_trees
from algorun.commands.simulated_trees import alone, prepare
from algorun.common.errors import UserError
from algorun.common.written import GENERATOR, written
from algorun.job.paths import Paths


def finished(out, mark, hosts=("algo-1",), *, resume=False):
    """A run that leaves a model and a checkpoint."""
    trees, earlier = prepare(out, hosts, {}, resume=resume)
    for base in trees.values():
        (base / "model" / "m").write_text(mark)
        (base / "checkpoints" / f"c-{mark}").write_text(mark)
    return earlier


def test_three_runs_before_are_kept_and_named(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    assert finished(out, "1", ("algo-1", "algo-2")) is None
    (out / "report.html").write_text(f'<meta name="generator" content="{GENERATOR}">')
    (out / "notes.txt").write_text("mine")
    for number in range(2, 6):
        assert finished(out, str(number)) == out / "previous-1"
    assert (out / "algo-1" / "model" / "m").read_text() == "5"
    kept = [out / f"previous-{number}" for number in (1, 2, 3)]
    assert [(folder / "algo-1" / "model" / "m").read_text() for folder in kept] == ["4", "3", "2"]
    assert sorted(os.listdir(out)) == [
        ".algorun-written",
        "algo-1",
        "notes.txt",
        "previous-1",
        "previous-2",
        "previous-3",
    ]
    assert {"algo-1", "previous-1", "previous-3"} <= written(out)


def test_a_page_of_the_run_before_moves_with_it(tmp_path):
    finished(tmp_path, "1", ("algo-1", "algo-2"))
    (tmp_path / "report.html").write_text(f'<meta name="generator" content="{GENERATOR}">')
    finished(tmp_path, "2")
    assert sorted(os.listdir(tmp_path / "previous-1")) == ["algo-1", "algo-2", "report.html"]


def test_resume_takes_the_checkpoints_along_and_nothing_else(tmp_path):
    finished(tmp_path, "1")
    finished(tmp_path, "2", resume=True)
    assert sorted(os.listdir(tmp_path / "algo-1" / "checkpoints")) == ["c-1", "c-2"]
    assert (tmp_path / "previous-1" / "algo-1" / "model" / "m").read_text() == "1"
    assert not (tmp_path / "previous-1" / "algo-1" / "checkpoints").exists()


def test_a_job_goes_on_with_fewer_hosts_and_with_more_again(tmp_path):
    """The host in between left out keeps its checkpoints."""
    finished(tmp_path, "1", ("algo-1", "algo-2"))
    finished(tmp_path, "2", resume=True)
    finished(tmp_path, "3", resume=True)
    finished(tmp_path, "4", ("algo-1", "algo-2"), resume=True)
    assert sorted(os.listdir(tmp_path / "algo-1" / "checkpoints")) == ["c-1", "c-2", "c-3", "c-4"]
    assert sorted(os.listdir(tmp_path / "algo-2" / "checkpoints")) == ["c-1", "c-4"]


def test_what_was_killed_while_it_made_its_folders_is_in_nobodys_way(tmp_path):
    (tmp_path / "algo-1" / "input" / "config").mkdir(parents=True)
    (tmp_path / "algo-1" / "input" / "config" / ".resourceconfig.json.4711").write_text("{")
    assert finished(tmp_path, "1") == tmp_path / "previous-1"
    assert (tmp_path / "algo-1" / "model" / "m").read_text() == "1"


def test_a_run_that_was_refused_costs_none_of_those_that_are_kept(tmp_path):
    finished(tmp_path, "1")
    for _ in range(4):
        (tree,) = prepare(tmp_path, ["algo-1"], {}, resume=False)[0].values()
        (Paths(tree).output_data / "result.json").write_text(json.dumps({"code": 64}))
    finished(tmp_path, "2")
    assert (tmp_path / "previous-1" / "algo-1" / "model" / "m").read_text() == "1"


def test_a_folder_that_is_not_ours_is_never_touched(tmp_path):
    (tmp_path / "algo-1").mkdir()
    (tmp_path / "algo-1" / "precious").write_text("x")
    with pytest.raises(UserError, match=r"--out: .*/algo-1 is not of a simulation; fix: name another folder"):
        prepare(tmp_path, ["algo-1"], {}, resume=False)
    assert (tmp_path / "algo-1" / "precious").read_text() == "x"


def test_one_simulation_at_a_time(tmp_path):
    refused = pytest.raises(UserError, match="another simulation runs in .*out; fix: wait")
    with alone(tmp_path / "out"), refused, alone(tmp_path / "out"):
        pass
    with alone(tmp_path / "out"):
        pass


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="--out: .*Not a directory"), alone(tmp_path / "file" / "out"):
        pass
    assert simulated_trees.KEPT == 3
