"""Checkpoints: complete or not there, torn ones recognised, the newest whole one used, few kept."""

import json
import os

import pytest
import torch

from algorun_train.checkpoint.single_file import LATEST, SingleFileStore
from algorun_train.checkpoint.state_file import FORMAT, compatible, unpack
from algorun_train.common.errors import UserError


def state(value: float) -> dict:
    return {"format": FORMAT, "model": {"w": torch.full((1000,), value)}, "losses": [value]}


@pytest.fixture
def store(tmp_path):
    return SingleFileStore(tmp_path / "checkpoints", keep=2)


def newest(store):
    warnings = []
    found = store.newest(warnings.append)
    return (found[0].name, unpack(found[1], "here")["losses"][0]) if found else None, warnings


def test_what_is_saved_comes_back(store):
    store.save(7, state(0.5))
    assert newest(store) == (("step-00000007", 0.5), [])
    assert (store.root / LATEST).read_text() == "step-00000007\n"
    unpacked = unpack(store.newest(print)[1], "here")
    assert torch.equal(unpacked["model"]["w"], torch.full((1000,), 0.5))


def test_nothing_there(store):
    assert newest(store) == (None, [])


def test_only_the_last_are_kept_and_leftovers_of_killed_writers_go(store):
    (store.root / ".step-00000001.99.tmp").mkdir(parents=True)
    for step in (1, 2, 3):
        store.save(step, state(step))
    assert sorted(p.name for p in store.root.iterdir()) == [LATEST, "step-00000002", "step-00000003"]


@pytest.mark.parametrize("harm", ["truncate", "flip", "no manifest", "half a manifest", "no state"])
def test_a_torn_checkpoint_is_passed_over_with_a_warning(store, harm):
    store.save(1, state(1))
    folder = store.save(2, state(2))
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
    found, warnings = newest(store)
    assert found == ("step-00000001", 1)
    assert len(warnings) == 1
    assert "step-00000002 is not complete" in warnings[0]


def test_a_pointer_that_is_missing_or_wrong_does_not_matter(store):
    store.save(1, state(1))
    store.save(2, state(2))
    (store.root / LATEST).unlink()
    assert newest(store)[0] == ("step-00000002", 2)
    (store.root / LATEST).write_text("step-00000099\n")
    assert newest(store)[0] == ("step-00000002", 2)


def test_a_run_that_began_anew_wins_over_older_checkpoints_of_more_steps(store):
    store.save(900, state(1))
    store.save(901, state(1))
    store.save(5, state(2))
    assert newest(store)[0] == ("step-00000005", 2)
    (store.root / LATEST).unlink()
    assert newest(store)[0] == ("step-00000005", 2)
    store.save(901, state(3))  # the same step once more
    assert newest(store)[0] == ("step-00000901", 3)


def test_a_failed_write_leaves_no_trace(store):
    store.save(1, state(1))
    with pytest.raises(Exception, match="pickle"):
        store.save(2, {"bad": lambda: None})
    assert sorted(p.name for p in store.root.iterdir()) == [LATEST, "step-00000001"]


def test_a_state_of_another_format_or_with_code_in_it_is_refused(store):
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


def test_the_manifest_is_plain_json(store):
    manifest = json.loads((store.save(3, state(1)) / "manifest.json").read_text())
    assert manifest["step"] == 3
    assert manifest["files"]["state.pt"]["size"] > 4000


def test_checkpoints_of_stages_in_the_same_folder_are_left_alone(store):
    part = store.root / "step-00000009" / "part-0000-of-0002.pt"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"another job's")
    for step in (1, 2, 3):
        store.save(step, state(step))
    assert newest(store) == (("step-00000003", 3.0), [])
    assert [each.name for each in sorted(store.root.glob("step-*"))] == [f"step-0000000{n}" for n in (2, 3, 9)]
    assert part.exists()
