"""smdistributed.modelparallel.torch: files and checkpoints."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from smdistributed.modelparallel.core import checkpoint_folder
from tests.compat.smp_runs import run

PROGRAM = "smp_checkpoints.py"


def said(folder, *args, **options):
    folder.mkdir(exist_ok=True)
    return run(folder, PROGRAM, *args, **options)


def test_files_have_the_rank_in_their_name_and_hold_plain_data(tmp_path):
    rows = said(tmp_path, "files")
    for rank, row in enumerate(rows):
        assert row["names"] == ["part.pt_0", "part.pt_1", "whole.pt"]
        assert row["part"] == [rank, [float(rank)] * 2]
        assert row["whole"] == {"whole": True}
        assert row["opaque"].startswith(
            f"UserError: FOLDER/opaque.pt_{rank} holds objects of the class __main__.Opaque; "
        )
        assert (
            "fix, for a file that you trust: torch.serialization.add_safe_globals([..]), weights_only=False"
            in row["opaque"]
        )
        assert row["allowed"] == ["Opaque", "Opaque"]
        assert row["missing"] == (
            f"UserError: smp.load: no file FOLDER/whole.pt_{rank}; allowed: FOLDER/whole.pt is there, for partial=False; "
            "fix: another name, or another value of partial"
        )
        assert row["arguments"] == rank
        assert row["no arguments"].startswith("UserError: smp.load: pickle_load_args is a bool; allowed: a dictionary")
        assert row["no text"] == "UserError: smp.save: f is a PosixPath; allowed: a text; fix: str(..)"
        assert row["no folder"].startswith("UserError: file /proc/none/f_")


PARTS = [f"3_partial/{name}.pt" for name in (
    "model_0_of_2", "model_1_of_2", "optimizer_0_of_2", "optimizer_1_of_2", "user_content")]  # fmt: skip


# `make test` keeps each schedule, each kind of model and each kind of layout, but not all of their combinations.
# `make test` goes on from a checkpoint in another degree: test_smp_sharded.py.
@pytest.mark.slow
@pytest.mark.parametrize("partial", ["parts", "whole"])
def test_training_goes_on_from_a_checkpoint_in_the_same_layout_and_in_others(partial, tmp_path):
    path = str(tmp_path / "checkpoints")
    names = said(tmp_path / "save", "save", path, partial)[0]
    assert names == (["3", "newest", "user_content_3"] if partial == "whole" else [*PARTS, "newest"])
    if partial == "whole":
        model = torch.load(f"{path}/3", weights_only=True)["model"]
        assert sorted(model) == [f"{i}.{kind}" for i in (0, 2, 4) for kind in ("bias", "weight")]
    for order, ranks, partitions in (
        ("later", 2, 2),
        ("first", 2, 2),
        ("not on rank 1", 2, 2),
        ("not on rank 0", 2, 2),
        ("later", 2, 1),
        ("first", 1, 1),
    ):
        rows = said(tmp_path / f"{order}{partitions}", "resume", path, partial, order, ranks=ranks, parameters={"partitions": partitions})  # fmt: skip
        assert rows == [[{"steps": 3}, True, True]] * ranks, (order, ranks, partitions)


def test_hosts_whose_newest_checkpoints_differ_take_that_of_the_first_rank(tmp_path):
    """A host that was lost before it had noted the last save."""
    path = tmp_path / "checkpoints"
    said(tmp_path / "save", "save", str(path), "parts")
    older = Path(shutil.copytree(path, f"{path}-older"))
    shutil.copytree(older / "3_partial", older / "2_partial")
    for number in range(2):
        file = older / f"2_partial/model_{number}_of_2.pt"
        part = torch.load(file, weights_only=True)
        part["state"] = {key: value * 2 if torch.is_tensor(value) else value for key, value in part["state"].items()}
        torch.save(part, file)
    (older / "newest").write_text("2\n")
    rows = said(tmp_path / "resume", "resume", str(path), "parts", "older on rank 1")
    assert rows == [[{"steps": 3}, True, True]] * 2


@pytest.mark.slow
def test_with_replicas_one_of_them_writes_and_the_oldest_parts_go(tmp_path):
    path = str(tmp_path / "checkpoints")
    names = said(tmp_path / "save", "save", path, "parts", "3", "2", ranks=4)[0]
    assert names == [
        *PARTS,
        "newest",
        *[f"old2_partial/{n}.pt" for n in ("model_0_of_2", "model_1_of_2", "user_content")],
    ]
    rows = said(tmp_path / "resume", "resume", path, "parts", "later", "3", ranks=4)
    assert rows == [[{"steps": 3}, True, True]] * 4
    # The same tag from another number of ranks replaces the parts.
    names = said(tmp_path / "one", "save", path, "parts", "3", ranks=1, parameters={"partitions": 1})[0]
    assert [name for name in names if name.startswith("3_")] == [
        "3_partial/model_0_of_1.pt",
        "3_partial/optimizer_0_of_1.pt",
        "3_partial/user_content.pt",
    ]


def test_another_rank_removes_an_old_folder_at_the_same_time(tmp_path, monkeypatch):
    folders = [tmp_path / f"{number}_partial" for number in range(3)]
    for folder in folders:
        folder.mkdir()
        (folder / "model_0_of_2.pt").touch()

    def is_dir(path: Path) -> bool:
        found = os.path.isdir(path)
        if path == folders[0]:
            shutil.rmtree(path)
        return found

    monkeypatch.setattr(Path, "is_dir", is_dir)
    checkpoint_folder.prune(tmp_path, folders[2], 2)
    assert [os.path.isdir(folder) for folder in folders] == [False, True, True]


def test_a_checkpoint_that_is_not_whole_is_refused_on_all_ranks(tmp_path):
    path = tmp_path / "checkpoints"
    assert len(set(said(tmp_path / "0", "lacking", str(path), "parts")[0])) == 1
    said(tmp_path / "1", "save", str(path), "parts")
    (path / "3_partial/model_1_of_2.pt").unlink()
    rows = said(tmp_path / "2", "lacking", str(path), "parts", "whole")
    assert rows[0] == rows[1]
    assert rows[0][0].startswith("UserError: smp.resume_from_checkpoint: no file")
    assert "3_partial/model_1_of_2.pt" in rows[0][0]
    assert rows[0][1].startswith(f"UserError: smp.resume_from_checkpoint: no file {path}/3; ")
    part = torch.load(path / "3_partial/model_0_of_2.pt")
    torch.save(part | {"save": "another"}, path / "3_partial/model_1_of_2.pt")
    (row, other) = said(tmp_path / "3", "lacking", str(path), "parts")
    assert row == other
    assert "are of two saves, of which one was not finished; fix: another tag" in row[0]


def test_a_file_of_another_kind_is_refused_by_name(tmp_path):
    path = tmp_path / "checkpoints"
    said(tmp_path / "0", "save", str(path), "parts")
    torch.save({"weights": 1}, path / "3_partial/model_0_of_2.pt")
    torch.save({"weights": 1}, path / "3_partial/model_1_of_2.pt")
    torch.save([1], path / "3")
    rows = said(tmp_path / "1", "lacking", str(path), "parts", "whole")
    assert rows[0] == rows[1]
    for row in rows:
        assert row == [
            f"UserError: smp.resume_from_checkpoint: {path}/{name} holds no dictionary{what}; fix: another path or tag"
            for name, what in (("3_partial/model_0_of_2.pt", " with save and state"), ("3", " of weights"))
        ]


@pytest.mark.parametrize("partial", ["parts", "whole"])
def test_user_content_that_cannot_be_read_back_is_told_of_when_it_is_saved(partial, tmp_path):
    for rank, row in enumerate(said(tmp_path, "content", str(tmp_path / "checkpoints"), partial)):
        plain, opaque, back, refused, allowed, unsaved = row
        assert (plain, back, allowed) == ([], {"lr": 0.1, "layers": [1, 2]}, "Opaque")
        assert len(opaque) == (rank == 0)
        for text in opaque:
            assert text.startswith("smp.save_checkpoint: user_content holds objects of the class __main__.Opaque, ")
            assert "fix: torch.serialization.add_safe_globals([Opaque]) before it is loaded" in text
        assert "holds objects of the class __main__.Opaque; allowed: tensors and plain data" in refused
        assert unsaved.startswith("UserError: smp.save_checkpoint: user_content cannot be saved: ")


def test_wrong_arguments_of_a_checkpoint_are_refused(tmp_path):
    for row in said(tmp_path, "wrong", str(tmp_path / "checkpoints")):
        starts = [
            "UserError: checkpoint: tag = '../x'; allowed: ",
            "UserError: smp.save_checkpoint: model is a Sequential; fix: ",
            "UserError: smp.save_checkpoint: optimizer is a SGD; fix: ",
            "UserError: smp.save_checkpoint: num_kept_partial_checkpoints = 0; allowed: ",
            "UserError: folder /proc/none/1_partial cannot be written: ",
            "UserError: folder /proc/none cannot be written: ",
        ]
        assert len(row) == len(starts)
        for text, start in zip(row, starts, strict=True):
            assert text.startswith(start)
