"""Checkpoints of version 0.1.0: torn ones are recognised, and the newest whole one is read."""

import os
import shutil

import pytest
import torch

from algorun_train.checkpoint import single_file
from algorun_train.checkpoint.ddp_checkpoints import DdpCheckpoints
from algorun_train.checkpoint.shards import Save, ShardStore
from algorun_train.checkpoint.single_file import LATEST
from algorun_train.checkpoint.state_file import FORMAT, JobRecord, State, compatible, unpack
from algorun_train.common.errors import UserError
from algorun_train.loop.progress import LoopProgress, Position
from tests.train.old_checkpoints import save
from tests.train.thread_communicator import as_ranks

IDENTITY = {"model": "m"}


def state(value: float) -> dict:
    return {"format": FORMAT, "model": {"w": torch.full((1000,), value)}, "losses": [value]}


@pytest.fixture
def root(tmp_path):
    return tmp_path / "checkpoints"


def newest(root):
    warnings = []
    found = next(single_file.undamaged(root, warnings.append), None)
    return (found[0].name, unpack(found[1], "here")["losses"][0]) if found else None, warnings


def test_what_was_saved_comes_back(root):
    save(root, 7, state(0.5))
    assert newest(root) == (("step-00000007", 0.5), [])
    unpacked = unpack(next(single_file.undamaged(root, print))[1], "here")
    assert torch.equal(unpacked["model"]["w"], torch.full((1000,), 0.5))


def test_nothing_there(root):
    assert newest(root) == (None, [])


@pytest.mark.parametrize("harm", ["truncate", "flip", "no manifest", "half a manifest", "no state"])
def test_a_torn_checkpoint_is_passed_over_with_a_warning(root, harm):
    save(root, 1, state(1))
    folder = save(root, 2, state(2))
    file, manifest = folder / "state.pt", folder / "manifest.json"
    if harm == "truncate":
        os.truncate(file, file.stat().st_size // 2)
    elif harm == "flip":
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    elif harm == "no manifest":
        manifest.unlink()
    elif harm == "half a manifest":
        manifest.write_text(manifest.read_text()[:20])
    else:
        file.unlink()
    found, warnings = newest(root)
    assert found == ("step-00000001", 1)
    assert len(warnings) == 1
    assert "step-00000002 is not complete" in warnings[0]


def test_a_pointer_that_is_missing_or_wrong_does_not_matter(root):
    save(root, 1, state(1))
    save(root, 2, state(2))
    (root / LATEST).unlink()
    assert newest(root)[0] == ("step-00000002", 2)
    (root / LATEST).write_text("step-00000099\n")
    assert newest(root)[0] == ("step-00000002", 2)


def test_a_run_that_began_anew_wins_over_older_checkpoints_of_more_steps(root):
    save(root, 900, state(1))
    save(root, 901, state(1))
    save(root, 5, state(2))
    assert newest(root)[0] == ("step-00000005", 2)
    (root / LATEST).unlink()
    assert newest(root)[0] == ("step-00000005", 2)
    save(root, 901, state(3))  # the same step once more
    assert newest(root)[0] == ("step-00000901", 3)


def test_a_state_of_another_format_or_with_code_in_it_is_refused(root):
    import io
    import pickle

    buffer = io.BytesIO()
    torch.save({"format": FORMAT + 1}, buffer)
    with pytest.raises(UserError, match="--resume never"):
        unpack(buffer.getvalue(), "there")

    class Evil:
        def __reduce__(self):
            return (os.system, ("touch evil",))

    with pytest.raises(UserError, match="cannot be used"):
        unpack(pickle.dumps(Evil(), protocol=2), "there")


def test_incompatible_jobs_are_told_what_differs():
    own = {"model": "vit", "width": 64, "seed": 0}
    compatible(dict(own), own, "there")
    with pytest.raises(UserError, match=r"width is 32 there, 64 here.*--resume never"):
        compatible(own | {"width": 32}, own, "there")


def test_shards_in_the_same_folder_are_passed_over(root):
    part = root / "step-00000009" / "part-0000-of-0002.pt"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"another job's")
    for step in (1, 2, 3):
        save(root, step, state(step))
    assert newest(root) == (("step-00000003", 3.0), [])


def of_job(step: int, broken: str = "") -> State:
    """A state as `ddp` of version 0.1.0 saved it, of `torch.nn.Linear(2, 1)`; NaN in one value of `broken`."""
    tensors = {"weight": torch.full((1, 2), float(step)), "exp_avg": torch.zeros(1, 2)}
    if broken:
        tensors[broken][0, 1] = torch.nan
    state = JobRecord(IDENTITY).state(LoopProgress(Position(0, step, step), [0.5]))
    moments = {0: {"step": torch.tensor(1.0), "exp_avg": tensors["exp_avg"], "exp_avg_sq": torch.ones(1, 2)}}
    model = {"weight": tensors["weight"], "bias": torch.zeros(1)}
    return {**state, "model": model, "optimizer": {"state": moments, "param_groups": []}}


def resumed(root):
    """What each of two ranks resumes: its weight and the text of its error, and the lines of rank 0."""

    def on_rank(comm):
        model = torch.nn.Linear(2, 1)
        checkpoints = DdpCheckpoints(
            ShardStore(root, 2), JobRecord(IDENTITY), model, torch.optim.Adam(model.parameters()), comm
        )
        try:
            found = checkpoints.restore()
        except UserError as error:
            return None, str(error)
        return (model.weight[0, 0].item() if found else None), ""

    return as_ranks(2, on_rank)


@pytest.mark.parametrize(("broken", "named"), [("weight", "weight"), ("exp_avg", "exp_avg of weight")])
def test_a_checkpoint_that_holds_nan_is_passed_over_on_all_ranks(root, broken, named, capfd):
    save(root, 1, of_job(1))
    folder = save(root, 2, of_job(2, broken))
    assert resumed(root) == [(1.0, "")] * 2
    assert f"warning: checkpoint {folder} is passed over: it holds NaN in {named} (state.pt)" in capfd.readouterr().out
    assert folder.is_dir(), "none of version 0.1.0 is removed"


def test_where_all_hold_nan_the_newest_is_named(root):
    for step in (1, 2):
        save(root, step, of_job(step, "weight"))
    found = resumed(root)
    assert [value for value, _ in found] == [None] * 2
    assert all("step-00000002 holds NaN in weight (state.pt): training had diverged" in text for _, text in found)


def test_a_checkpoint_of_0_1_0_is_used_where_all_newer_ones_hold_nan(root):
    save(root, 1, of_job(1))
    newer = of_job(2, "weight")
    ShardStore(root, 2).write(Save(2.0, 2, 1), 0, newer | {"optimizer": {"weight": newer["optimizer"]["state"][0]}})
    assert resumed(root) == [(1.0, "")] * 2
    shutil.rmtree(root / "step-00000001")
    assert all("step-00000002 holds NaN in weight (part-0000-of-0001.pt)" in text for _, text in resumed(root))
