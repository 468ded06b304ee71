"""Checkpoints of several parts: found on any disks, read by any number of stages, torn ones passed over by all ranks."""

import json
import os
from pathlib import Path

import pytest
import torch

from algorun_train.checkpoint.optimizer_state import load_named_state, named_state
from algorun_train.checkpoint.shard_reader import ShardReader
from algorun_train.checkpoint.shard_saver import ShardSaver, on_cpu
from algorun_train.checkpoint.shards import FORMAT, Save, ShardStore, model_state
from algorun_train.common.errors import UserError
from algorun_train.models.gpt import build
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.host_copies import HostCopies
from algorun_train.ranks.world import World
from tests.train.programs.sharded_training import IDENTITY, SPEC, Layout, files, same, straight

ALONE = Communicator(World(), torch.device("cpu"))
PROGRAM = [str(Path(__file__).parents[1] / "programs" / "sharded_training.py")]


def write_all(store: ShardStore, step: int, stages: int, written: float) -> None:
    layout = Layout(stages, 0, 1)
    for number in range(1, step + 1):
        layout.step(number)
    for part, state in layout.states(step).items():
        store.write(Save(written, step, stages), part, state)


def test_the_files_are_as_documented(tmp_path):
    write_all(ShardStore(tmp_path, 2), 7, 2, 5.5)
    assert files(tmp_path) == [
        f"step-00000007/part-000{n}-of-0002.{suffix}" for n in (0, 1) for suffix in ("json", "pt")
    ]
    manifest = json.loads((tmp_path / "step-00000007" / "part-0001-of-0002.json").read_text())
    size = (tmp_path / "step-00000007" / "part-0001-of-0002.pt").stat().st_size
    assert manifest == {"format": FORMAT, "step": 7, "written": 5.5, "size": size, "sha256": manifest["sha256"]}


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_whole_model_takes_the_parts_of_any_number_of_stages(tmp_path, stages):
    write_all(ShardStore(tmp_path, 2), 3, stages, 1.0)
    model = build(SPEC, seed=9)
    model.load_state_dict(model_state(tmp_path))
    expected = straight(3)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_a_user_gets_the_newest_whole_checkpoint_or_an_error_that_says_why(tmp_path):
    write_all(ShardStore(tmp_path, 2), 2, 2, 1.0)
    write_all(ShardStore(tmp_path, 2), 3, 2, 2.0)
    os.truncate(tmp_path / "step-00000003" / "part-0001-of-0002.pt", 100)
    assert torch.equal(model_state(tmp_path)["head.weight"], straight(2)["head.weight"])
    (tmp_path / "step-00000002" / "part-0000-of-0002.json").unlink()
    with pytest.raises(UserError, match=r"part-0001-of-0002\.pt has 100 bytes, not .*fix:"):
        model_state(tmp_path)
    with pytest.raises(UserError, match="no checkpoint there has all of its shards"):
        model_state(tmp_path / "nowhere")


def test_parts_of_two_runs_at_the_same_step_are_never_mixed(tmp_path):
    store = ShardStore(tmp_path, 2)
    write_all(store, 1, 2, 1.0)
    write_all(store, 2, 2, 2.0)
    state = Layout(2, 0, 1).states(2)[0]
    store.write(Save(3.0, 2, 2), 0, state)  # a run that began anew, killed before its part 1
    said = []
    assert Layout(1, 0, 1).resume(store, ALONE, said.append) == 1
    assert [text for text in said if "step-00000002 lacks shard 1 of 2" in text]
    assert [text for text in said if "step-00000002 lacks shard 0 of 2" in text]


def test_a_run_that_began_anew_wins_over_older_checkpoints_of_more_steps(tmp_path):
    store = ShardStore(tmp_path, 2)
    write_all(store, 9, 1, 1.0)
    write_all(store, 2, 1, 2.0)
    assert Layout(1, 0, 1).resume(store, ALONE) == 2


def test_a_clock_that_was_put_back_does_not_make_older_checkpoints_newer(tmp_path):
    store = ShardStore(tmp_path, 2)
    write_all(store, 9, 1, 4e9)
    saver, layout = ShardSaver(store, ALONE, print), Layout(1, 0, 1)
    saver.save(1, 1, layout.states(1))
    saver.finish()
    assert Layout(1, 0, 1).resume(store, ALONE) == 1


def test_the_newest_stay_and_what_killed_writers_left_goes_but_nothing_else(tmp_path):
    saver, layout = ShardSaver(ShardStore(tmp_path, 2), ALONE, print), Layout(2, 0, 1)
    for name in ("step-00000001/.part-0000-of-0002.pt.9.tmp", "step-00000002/part-0001-of-0004.pt", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "step-00000001" / "mine.txt").touch()
    for step in (1, 2, 3):
        layout.step(step)
        saver.save(step, 2, layout.states(step))
    before = {name.split("/")[0] for name in files(tmp_path)}
    assert "step-00000001" in before  # until the third is known to be complete
    saver.finish()
    kept = [f"step-0000000{s}/part-000{n}-of-0002.{x}" for s in (2, 3) for n in (0, 1) for x in ("json", "pt")]
    assert files(tmp_path) == ["notes.txt", "step-00000001/mine.txt", *kept]


def test_saving_takes_the_values_of_the_moment(tmp_path):
    saver, layout = ShardSaver(ShardStore(tmp_path, 2), ALONE, print), Layout(1, 0, 1)
    layout.step(1)
    saver.save(1, 1, layout.states(1))
    for number in range(2, 30):
        layout.step(number)
    saver.finish()
    other = Layout(4, 0, 1)
    assert other.resume(ShardStore(tmp_path, 2), ALONE) == 1
    assert same(other.everything(), straight(1))


def test_an_error_of_the_writer_is_raised_at_the_next_save_and_older_checkpoints_stay(tmp_path):
    saver, layout = ShardSaver(ShardStore(tmp_path, 1), ALONE, print), Layout(1, 0, 1)
    saver.save(1, 1, layout.states(1))
    saver.finish()
    (tmp_path / "step-00000002").write_text("in the way")
    saver.save(2, 1, layout.states(2))
    with pytest.raises(FileExistsError):
        saver.save(3, 1, layout.states(3))
    assert files(tmp_path) == [
        "step-00000001/part-0000-of-0001.json",
        "step-00000001/part-0000-of-0001.pt",
        "step-00000002",
    ]


def test_parts_that_nobody_saved_are_an_error(tmp_path):
    saver, layout = ShardSaver(ShardStore(tmp_path, 1), ALONE, print), Layout(2, 0, 1)
    states = layout.states(1)
    del states[1]
    saver.save(1, 2, states)
    with pytest.raises(RuntimeError, match=r"step-00000001 was saved and yet lacks \[1\] of 2 shards"):
        saver.finish()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"identity": IDENTITY | {"seed": 1}}, r"does not fit this job: seed is 1 there, 0 here"),
        ({"format": 2}, "format 2, this version reads 1"),
        ({"model": {}}, r"it has no embed\.position, embed\.tokens\.weight, blocks.* and \d+ more"),
        ({"model": 3}, "AttributeError"),
        ({"losses": None}, "losses are not numbers"),
        ({"losses": [1.0, None]}, "losses are not numbers"),
        ({"position": {"epoch": -1}}, "position"),
        ({"optimizer": {"head.weight": {"exp_avg": torch.zeros(3)}}}, r"exp_avg of head.weight is \[3\]"),
    ],
)
def test_a_checkpoint_of_another_job_is_refused(tmp_path, change, message):
    store = ShardStore(tmp_path, 1)
    store.write(Save(1.0, 1, 1), 0, Layout(1, 0, 1).states(1)[0] | change)
    with pytest.raises(UserError, match=f"{message}.*--resume never"):
        Layout(1, 0, 1).resume(store, ALONE)


def test_a_part_with_code_in_it_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path}/evil",))

    store = ShardStore(tmp_path, 1)
    store.write(Save(1.0, 1, 1), 0, {"format": FORMAT, "model": Evil()})
    with pytest.raises(UserError, match="cannot be used"):
        Layout(1, 0, 1).resume(store, ALONE)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '{"format": 1}', '{"format": "2", "step": 1, "written": 1, "size": 1, "sha256": ""}',
     '{"format": 1, "step": 2, "written": 1, "size": 1, "sha256": ""}', '{"format": 1, "step": 1, "written": NaN, "size": 1, "sha256": ""}',
     "[" * 100_000],
)  # fmt: skip
def test_a_broken_manifest_is_one_warning(tmp_path, text):
    store = ShardStore(tmp_path, 1)
    write_all(store, 1, 1, 1.0)
    (tmp_path / "step-00000001" / "part-0000-of-0001.json").write_text(text)
    said = []
    assert ShardReader(store, ALONE, said.append).newest(IDENTITY, lambda name: True) is None
    assert len(said) == 2
    assert "part-0000-of-0001.pt is passed over: its manifest" in said[0]
    assert said[1] == f"warning: no checkpoint in {tmp_path} can be used, so none of them is resumed"


def test_optimizer_state_by_name_fits_another_order_of_parameters_and_other_rates():
    one, two = (torch.nn.Parameter(torch.ones(size)) for size in (2, 3))
    first = torch.optim.SGD([one, two], lr=0.1, momentum=0.9)
    one.grad = torch.ones(2)
    first.step()
    state = named_state(first, [("one", one), ("two", two)])
    assert list(state["one"]) == ["momentum_buffer"]
    second = torch.optim.SGD([{"params": [two], "lr": 1.0}, {"params": [one]}], lr=2.0, momentum=0.9)
    load_named_state(second, [("two", two), ("one", one)], on_cpu(state, HostCopies()))
    assert torch.equal(second.state[one]["momentum_buffer"], torch.ones(2))
    assert [group["lr"] for group in second.param_groups] == [1.0, 2.0]
