"""Checkpoint folders as people, tools and crashes leave them: used, passed over with a line, or refused before a step."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from algorun_train.checkpoint import finished
from algorun_train.checkpoint.finished import Artifact
from algorun_train.checkpoint.folder_check import check_artifacts, check_checkpoints
from algorun_train.checkpoint.shard_reader import Restored, ShardReader
from algorun_train.checkpoint.shard_saver import ShardSaver
from algorun_train.checkpoint.shards import Save, Shard, ShardStore, lacking, model_state
from algorun_train.checkpoint.state_file import JobRecord, compatible
from algorun_train.common.errors import UserError
from algorun_train.loop.progress import LoopProgress, Position
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.world import World
from tests.train.thread_communicator import as_ranks

ALONE = Communicator(World(), torch.device("cpu"))
IDENTITY = {"model": "m"}


def state(value: float, step: int = 1, **optimizer: torch.Tensor) -> dict:
    made = JobRecord(IDENTITY, {"lr": 0.1}).state(LoopProgress(Position(0, step, step), [0.5]))
    return {**made, "model": {"w": torch.full((3,), value)}, "optimizer": {"w": optimizer}}


def write(root: Path, step: int, written: float = 0.0) -> Path:
    """A checkpoint of one shard; returns its folder."""
    store = ShardStore(root, 2)
    return store.path(store.write(Save(written or step, step, 1), 0, state(step, step))).parent


def resume(root: Path) -> tuple[Restored | None, list[str]]:
    said: list[str] = []
    store = ShardStore(root, 2)
    check_checkpoints(root)
    return ShardReader(store, ALONE, lambda text: said.append(str(text))).newest(IDENTITY, lambda name: True), said


def step_of(root: Path) -> int:
    return resume(root)[0].progress.position.step


def save(root: Path, step: int) -> None:
    saver = ShardSaver(ShardStore(root, 1), ALONE, print)
    saver.save(step, 1, {0: state(step, step)})
    saver.finish()


@pytest.mark.parametrize("name", ["part-0000-of-0001.pt", "part-0000-of-0001.json", "part-0001-of-0002.pt"])
def test_a_folder_with_the_name_of_a_shard_is_refused_before_training(tmp_path, name):
    folder = write(tmp_path, 8)
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    with pytest.raises(
        UserError, match=rf"step-00000008/{name} has the name of a checkpoint's file, but is a folder; .*; fix: move"
    ):
        resume(tmp_path)


def test_a_pipe_with_the_name_of_a_manifest_keeps_nobody_waiting(tmp_path):
    folder = write(tmp_path, 8)
    (folder / "part-0000-of-0001.json").unlink()
    os.mkfifo(folder / "part-0000-of-0001.json")
    with pytest.raises(UserError, match="json has the name of a checkpoint's file, but is no file"):
        resume(tmp_path)


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_a_file_with_the_name_of_a_checkpoint_is_refused_before_training(tmp_path, kind):
    path = tmp_path / "step-00000009"
    path.write_text("") if kind == "file" else path.symlink_to("nowhere")
    with pytest.raises(UserError, match="step-00000009 has the name of a checkpoint, but is no folder"):
        resume(tmp_path)


def test_it_is_the_same_error_on_all_ranks(tmp_path):
    roots = [tmp_path / "a", tmp_path / "b"]
    (roots[1] / "step-00000001" / "part-0000-of-0001.pt").mkdir(parents=True)

    def check(comm):
        with pytest.raises(UserError) as caught:
            comm.on_all(lambda: check_checkpoints(roots[comm.rank]))
        return str(caught.value)

    assert len(set(as_ranks(2, check))) == 1


def test_dangling_links_are_passed_over_and_replaced(tmp_path):
    write(tmp_path, 7)
    folder = write(tmp_path, 8)
    for name in ("part-0000-of-0001.pt", "part-0000-of-0001.json"):
        (folder / name).rename(tmp_path / name)
        (folder / name).symlink_to("nowhere")
    found, said = resume(tmp_path)
    assert found.progress.position.step == 7
    assert "step-00000008/part-0000-of-0001.pt is passed over: its manifest: [Errno 2]" in said[0]
    save(tmp_path, 8)
    assert step_of(tmp_path) == 8


def test_a_checkpoint_behind_a_link_is_read(tmp_path):
    write(tmp_path / "elsewhere", 8).rename(tmp_path / "kept")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "step-00000008").symlink_to(tmp_path / "kept")
    assert step_of(tmp_path / "root") == 8


class Unreadable:
    """os.scandir and os.listdir of a user that may not read one folder: root may."""

    def __init__(self, monkeypatch, folder: Path) -> None:
        for name in ("scandir", "listdir"):
            monkeypatch.setattr(os, name, self._refusing(getattr(os, name), str(folder)))

    def _refusing(self, call, folder):
        def refusing(path, *args):
            if str(path) == folder:
                raise PermissionError(13, "Permission denied", folder)
            return call(path, *args)

        return refusing


def test_a_checkpoint_without_permission_is_named_and_the_one_before_is_used(tmp_path, monkeypatch):
    write(tmp_path, 7)
    Unreadable(monkeypatch, write(tmp_path, 8))
    found, said = resume(tmp_path)
    assert found.progress.position.step == 7
    assert said[0].endswith("step-00000008 is passed over: it cannot be read: Permission denied")


def test_a_folder_of_checkpoints_without_permission_is_refused(tmp_path, monkeypatch):
    write(tmp_path, 7)
    Unreadable(monkeypatch, tmp_path)
    with pytest.raises(UserError, match="cannot be used: Permission denied; allowed: .*; fix: its permissions"):
        resume(tmp_path)


def test_a_folder_of_checkpoints_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    check_checkpoints(tmp_path / "not" / "yet")
    assert not (tmp_path / "not").exists()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match="cannot be used: no permission to write, or a disk that is read-only; allowed"):
        check_checkpoints(tmp_path / "not" / "yet")


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_another_thing_in_the_place_of_all_checkpoints_is_refused(tmp_path, kind):
    path = tmp_path / "checkpoints"
    path.write_text("") if kind == "file" else path.symlink_to("nowhere")
    with pytest.raises(UserError, match="checkpoints is to hold checkpoints, but is no folder"):
        check_checkpoints(path)


@pytest.mark.parametrize("name", ["model.pt", "model.json", "model.safetensors", "metrics.jsonl"])
def test_a_folder_with_the_name_of_an_artifact_is_refused_before_training(tmp_path, name):
    (tmp_path / "tensorboard").mkdir()
    check_artifacts([tmp_path, tmp_path / "nothing"])
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=f"{name} is a folder with the name of a file that the job writes; allowed: "):
        check_artifacts([tmp_path])


def test_a_shard_whose_manifest_was_not_copied_is_named(tmp_path):
    write(tmp_path, 7)
    (write(tmp_path, 8) / "part-0000-of-0001.json").unlink()
    found, said = resume(tmp_path)
    assert found.progress.position.step == 7
    assert "step-00000008/part-0000-of-0001.pt is passed over: it has no manifest, so it is not complete" in said[0]


def test_files_of_no_bytes_after_a_power_cut_are_passed_over(tmp_path):
    write(tmp_path, 418)
    for step in (420, 422):
        for file in write(tmp_path, step).iterdir():
            os.truncate(file, 0)
    found, said = resume(tmp_path)
    assert found.progress.position.step == 418
    assert [text for text in said if "passed over: its manifest" in text] == said[:2]


def test_a_checkpoint_of_a_newer_version_is_refused_and_never_removed(tmp_path):
    write(tmp_path, 7)
    manifest = write(tmp_path, 8) / "part-0000-of-0001.json"
    newer = manifest.read_text().replace('"format": 1', '"format": 2')
    manifest.write_text(newer)
    with pytest.raises(
        UserError, match="is of a newer version of algorun: format 2, this version reads 1; fix: an image"
    ):
        resume(tmp_path)
    save(tmp_path, 1)  # --resume never
    assert manifest.read_text() == newer
    assert manifest.with_suffix(".pt").exists()
    assert not (tmp_path / "step-00000007").exists()


def write_diverged(root: Path, step: int, where: str = "model") -> Path:
    """A checkpoint that holds NaN in a weight or in a moment; returns its folder."""
    made = state(1.0, step, exp_avg=torch.zeros(3))
    tensors = made["model"] if where == "model" else made["optimizer"]["w"]
    tensors["w" if where == "model" else "exp_avg"][1] = torch.nan
    store = ShardStore(root, 1)
    return store.path(store.write(Save(step, step, 1), 0, made)).parent


@pytest.mark.parametrize(("where", "what"), [("model", "w"), ("optimizer", "exp_avg of w")])
def test_a_checkpoint_that_holds_nan_is_passed_over_for_the_one_before(tmp_path, where, what):
    write(tmp_path, 7)
    diverged = [write_diverged(tmp_path, step, where) for step in (9, 8)]
    found, said = resume(tmp_path)
    assert found.progress.position.step == 7
    assert said[:2] == [
        f"warning: checkpoint {each} is passed over: it holds NaN in {what} (part-0000-of-0001.pt)" for each in diverged
    ]
    with pytest.warns(UserWarning, match=rf"step-0000000[89] is passed over: it holds NaN in {what}"):
        assert model_state(tmp_path)["w"].tolist() == [7.0] * 3
    save(tmp_path, 8)
    assert step_of(tmp_path) == 8, "the job that goes on saves over it"


def test_a_job_that_goes_on_keeps_good_checkpoints_and_removes_those_with_nan(tmp_path):
    """Also with the job's own: a run of good and broken ones is pruned to the two newest good ones."""
    for step in (6, 7):
        write(tmp_path, step)
    for step in (8, 9):
        write_diverged(tmp_path, step)
    found, _ = resume(tmp_path)
    saver = ShardSaver(ShardStore(tmp_path, 2), ALONE, print)
    saver.go_on_from(found.save, found.passed_over)
    saver.save(8, 1, {0: state(8, 8)})
    saver.finish()
    kept = {shard.save.step for shard in ShardStore(tmp_path, 2).found()[0]}
    assert (kept, step_of(tmp_path)) == ({7, 8}, 8)
    shutil.rmtree(tmp_path / "step-00000008")
    assert step_of(tmp_path) == 7


def test_where_all_checkpoints_hold_nan_the_newest_is_named(tmp_path):
    write_diverged(tmp_path, 1)
    write_diverged(tmp_path, 2)
    with pytest.raises(
        UserError,
        match=r"step-00000002 holds NaN in w \(part-0000-of-0001.pt\): training had diverged before it was saved",
    ):
        resume(tmp_path)
    refused = pytest.raises(UserError, match="step-00000002 is passed over: it holds NaN in w")
    with pytest.warns(UserWarning, match="is passed over"), refused:
        model_state(tmp_path)


@pytest.mark.parametrize("count", [2, 3])
def test_all_ranks_pass_over_a_checkpoint_of_which_one_shard_holds_nan(tmp_path, count):
    store = ShardStore(tmp_path, 2)
    for step in (3, 4):
        for number in range(2):
            made = state(step, step) | {
                "model": {f"w{number}": torch.full((3,), torch.nan if step + number == 5 else 1.0)}
            }
            store.write(Save(step, step, 2), number, made | {"optimizer": {}})

    def ranks(comm: Communicator) -> tuple[int, list[str]]:
        said: list[str] = []
        reader = ShardReader(store, comm, lambda text: said.append(str(text)))
        return reader.newest(IDENTITY, lambda name: True).progress.position.step, said

    rows = as_ranks(count, ranks)
    assert {step for step, _ in rows} == {3}
    assert all("step-00000004 is passed over: it holds NaN in w1 (part-0001-of-0002.pt)" in said[0] for _, said in rows)


def test_infinity_and_whole_numbers_are_no_nan(tmp_path):
    made = state(float("-inf"), count=torch.tensor(3), mask=torch.zeros(0), flags=torch.ones(2, dtype=torch.bool))
    ShardStore(tmp_path, 1).write(Save(1.0, 1, 1), 0, made)
    assert step_of(tmp_path) == 1


def test_names_that_are_almost_a_checkpoints_are_named_and_not_used(tmp_path):
    write(tmp_path, 7)
    names = [
        "Step-00000010",
        "STEP-00000011",
        "step-12",
        "step-000000013",
        "step-00000014 (1)",
        "step-00000015.bak",
        "step_16",
    ]
    for name in names:
        shutil.copytree(tmp_path / "step-00000007", tmp_path / name)
    found, said = resume(tmp_path)
    assert found.progress.position.step == 7
    assert said[0] == (
        f"warning: STEP-00000011, Step-00000010, step-000000013 and 4 more in {tmp_path}: passed over, no name of a "
        "checkpoint; allowed: step- and the step in 8 digits"
    )


def test_what_the_copy_to_s3_leaves_behind_disturbs_nothing(tmp_path):
    folder = write(tmp_path, 8)
    for name in ("part-0000-of-0001.pt", "part-0000-of-0001.json", ".part-0000-of-0001.pt.7.tmp"):
        for mark in (".sagemaker-uploading", ".sagemaker-uploaded"):
            (folder / (name + mark)).write_text("")
    (tmp_path / "step-00000008.sagemaker-uploaded").write_text("")
    (tmp_path / "step-00000009.tmp").mkdir()
    (folder / ".part-0000-of-0001.pt.7.tmp").write_text("half")
    found, said = resume(tmp_path)
    assert found.progress.position.step == 8
    assert len(said) == 1
    save(tmp_path, 9)
    assert step_of(tmp_path) == 9


def test_the_newest_is_that_of_the_latest_save_whatever_names_and_times_of_files_say(tmp_path):
    write(tmp_path, 9_000, written=1.0)
    newest = write(tmp_path, 10, written=3.0)  # a run that began anew
    write(tmp_path, 100_000_000, written=2.0)  # nine digits
    for file in newest.iterdir():
        os.utime(file, (0, 0))
    os.utime(newest, (0, 0))
    assert step_of(tmp_path) == 10
    save(tmp_path, 11)  # keeps one
    assert sorted(each.name for each in tmp_path.iterdir()) == ["step-00000011"]


def test_a_clock_that_was_set_back_does_not_hide_new_checkpoints(tmp_path):
    write(tmp_path, 5, written=4e9)  # in the year 2096
    save(tmp_path, 6)
    assert step_of(tmp_path) == 6


def test_two_jobs_in_one_folder_are_named_if_one_loses_its_shard(tmp_path):
    saver = ShardSaver(ShardStore(tmp_path, 1), ALONE, print)
    saver.save(1, 1, {0: state(1)})
    saver._thread.join()
    write(tmp_path, 1, written=9.0)  # the same step of the other job
    with pytest.raises(RuntimeError, match="yet lacks .* another job that writes to .* may have removed them"):
        saver.finish()


def test_a_name_that_promises_a_thousand_million_shards_costs_nothing(tmp_path):
    write(tmp_path, 7)
    folder = tmp_path / "step-00000008"
    folder.mkdir()
    manifest = {"format": 1, "step": 8, "written": 8.0, "size": 1, "sha256": ""}
    (folder / "part-0000-of-1000000000.json").write_text(json.dumps(manifest))
    found, said = resume(tmp_path)
    assert found.progress.position.step == 7
    assert "step-00000008 lacks shard 1, 2, 3 of 1000000000 (from 0) on all hosts" in said[0]
    assert lacking(Save(1.0, 1, 10**12), {0, 2}) == [1, 3, 4]


def test_lora_adapters_need_the_weights_below_them_and_old_checkpoints_do_not_say_which():
    own = {"model": "m", "weights": "a"}
    compatible(own, own, "there")
    compatible({"model": "m"}, own, "there")  # of an earlier version
    with pytest.raises(UserError, match="weights is 'b' there, 'a' here"):
        compatible({"model": "m", "weights": "b"}, own, "there")


def test_values_that_cannot_be_compared_are_refused(tmp_path):
    for key in ("identity", "options"):
        made = state(1.0) | {key: {"model": torch.ones(2)}}
        ShardStore(tmp_path, 1).write(Save(1.0, 1, 1), 0, made)
        with pytest.raises(UserError, match=r"cannot be used: TypeError: .*; fix: --resume never"):
            resume(tmp_path)


def test_a_note_about_an_artifact_holds_for_its_own_checkpoint_alone(tmp_path):
    one, other = Save(1.5, 8, 2), Save(1.75, 8, 2)
    artifact = Artifact("job-1", {"merge": False})
    assert finished.read_artifact(tmp_path, one) is None
    finished.write(tmp_path, one, artifact)
    assert finished.read_artifact(tmp_path, one) == artifact
    assert finished.read_artifact(tmp_path, other) is None
    for text in ("", "[]", '{"format": 1}', '{"format": 2}', "[" * 100_000):
        (tmp_path / finished.FILE).write_text(text)
        assert finished.read_artifact(tmp_path, one) is None
    assert ShardStore(tmp_path, 1).found() == ([], [])


def test_a_shard_is_named_by_its_number_in_four_digits():
    assert Shard(Save(1.0, 8, 12), 3, 0, "").file == "part-0003-of-0012.pt"
