"""What the runner brings to the hosts and takes from them, without a job that runs."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from algorun_client.common.errors import ApiError, NotFound
from algorun_client.local import artifacts, inputs
from algorun_client.local.folder_store import FolderStore
from algorun_client.local.host_tree import HostTrees
from algorun_client.local.job_description import (
    Artifacts,
    HostProgram,
    JobDescription,
    JobHosts,
    LocalInput,
    Synced,
    described,
)
from algorun_client.local.simulated_hosts import SimulatedHosts
from algorun_client.local.synced_folder import SyncedFolder, Syncing
from algorun_client.request.model import Kind
from tests.client.local.local_jobs import BUCKET, channel, training

GROUPS = [
    {"InstanceGroupName": "gpu", "InstanceType": "ml.g5.xlarge", "InstanceCount": 1},
    {"InstanceGroupName": "cpu", "InstanceType": "ml.m5.large", "InstanceCount": 2},
]


@pytest.fixture
def store(tmp_path):
    return FolderStore(tmp_path / "root")


def hosts(tmp_path, count=2):
    trees = {f"algo-{number}": tmp_path / f"algo-{number}" for number in range(1, count + 1)}
    for tree in trees.values():
        (tree / "checkpoints").mkdir(parents=True)
    return trees


def brought(store, tmp_path, *sources, count=2):
    """The names of the files that each host gets."""
    trees = hosts(tmp_path, count)
    program = HostProgram(image="", entrypoint=(), arguments=(), environment={})
    cluster = JobHosts({"all": tuple(trees)}, {})
    job = JobDescription(kind=Kind.TRAINING, job="job", cluster=cluster, program=program, inputs=sources)
    inputs.bring(job, store, trees, lambda: None, by_links=True)
    return [
        sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()) for tree in trees.values()
    ]


def test_a_prefix_is_no_folder(store, tmp_path):
    """As in SageMaker: a prefix without a slash at its end takes neighbours in."""
    for key in ("data/x", "data/deep/y", "data2/z"):
        store.put(f"{BUCKET}/{key}", b"")
    found = brought(store, tmp_path, LocalInput("a", f"{BUCKET}/data", "in"), count=1)
    assert found == [["in/2/z", "in/deep/y", "in/x"]]


def test_shards_go_round_the_hosts_in_the_order_of_the_keys(store, tmp_path):
    for number in range(5):
        store.put(f"{BUCKET}/data/{number}", b"")
    source = LocalInput("a", f"{BUCKET}/data/", "in", shard=True, hosts=("algo-1", "algo-3"))
    assert brought(store, tmp_path, source, count=3) == [["in/0", "in/2", "in/4"], [], ["in/1", "in/3"]]


def test_a_manifest_names_its_objects(store, tmp_path):
    for key in ("data/x", "data/deep/y", "data/z"):
        store.put(f"{BUCKET}/{key}", b"")
    store.put(f"{BUCKET}/manifest", json.dumps([{"prefix": f"{BUCKET}/data/"}, "x", "deep/y"]).encode())
    source = LocalInput("a", f"{BUCKET}/manifest", "in", manifest=True)
    assert brought(store, tmp_path, source, count=1) == [["in/deep/y", "in/x"]]


def test_an_object_cannot_leave_its_folder(store, tmp_path):
    store.put(f"{BUCKET}/data/../../x", b"")
    with pytest.raises(ValueError, match="outside its folder"):
        brought(store, tmp_path, LocalInput("a", f"{BUCKET}/data/", "in"))
    with pytest.raises(NotFound):
        brought(store, tmp_path / "other", LocalInput("a", f"{BUCKET}/none/", "in"))


def test_code_may_be_a_file_or_a_folder(store, tmp_path):
    store.put(f"{BUCKET}/code.tar.gz", b"archive")
    store.put(f"{BUCKET}/folder/lib/x.py", b"")
    store.put(f"{BUCKET}/folder/train.py", b"")
    file = inputs.local_code(
        {"sagemaker_submit_directory": f'"{BUCKET}/code.tar.gz"'}, store, tmp_path / "one", tmp_path / "one"
    )
    assert file == {"sagemaker_submit_directory": str(tmp_path / "one/code.tar.gz")}
    two = inputs.local_code({"sagemaker_submit_directory": f"{BUCKET}/folder"}, store, tmp_path / "two", Path("/seen"))
    assert two["sagemaker_submit_directory"] == "/seen"  # as a container sees the folder
    assert (tmp_path / "two/lib/x.py").exists()
    assert inputs.local_code({"lr": "0.1"}, store, tmp_path / "three", tmp_path) == {"lr": "0.1"}


def test_hosts_of_groups_find_their_own_in_resourceconfig(store, tmp_path):
    one = channel("only-cpu", f"{BUCKET}/x", InstanceGroupNames=["cpu"])
    request = training(store, "job", "", InputDataConfig=[one]) | {"ResourceConfig": {"InstanceGroups": GROUPS}}
    job = described(Kind.TRAINING, request)
    assert job.inputs[0].hosts == ("algo-2", "algo-3")
    trees = HostTrees(
        job=job,
        request=request,
        hyperparameters={"data": "/opt/ml/input/data"},
        hosts=SimulatedHosts(job, tmp_path / "environments", tmp_path / "file-systems"),
    )
    trees.make(tmp_path / "algo-2", "algo-2")
    config = tmp_path / "algo-2" / "input" / "config"
    found = json.loads((config / "resourceconfig.json").read_text())
    assert found["hosts"] == ["algo-1", "algo-2", "algo-3"]
    assert (found["current_host"], found["current_group_name"], found["current_instance_type"]) == (
        "algo-2",
        "cpu",
        "ml.m5.large",
    )
    assert [group["hosts"] for group in found["instance_groups"]] == [["algo-1"], ["algo-2", "algo-3"]]
    channels = json.loads((config / "inputdataconfig.json").read_text())
    assert channels["only-cpu"]["TrainingInputMode"] == "File"
    assert json.loads((config / "hyperparameters.json").read_text()) == {"data": f"{tmp_path}/algo-2/input/data"}


def test_checkpoints_are_restored_to_every_host_and_only_changes_go_back(store, tmp_path):
    store.put(f"{BUCKET}/state/old", b"old")
    store.put(f"{BUCKET}/state2/neighbour", b"not ours")
    trees = hosts(tmp_path)
    one, two = (tree / "checkpoints" for tree in trees.values())
    synced = SyncedFolder(Synced(f"{BUCKET}/state/", "checkpoints", restore=True), store, trees)
    synced.restore()
    assert [os.listdir(each) for each in (one, two)] == [["old"], ["old"]]
    before = store.path(f"{BUCKET}/state/old").stat().st_mtime_ns
    synced.sync()
    assert store.path(f"{BUCKET}/state/old").stat().st_mtime_ns == before
    (two / "deep").mkdir()
    (two / "deep" / "new").write_text("two")
    (two / "both").write_text("two")
    (one / "both").write_text("one")
    (one / "old").unlink()
    synced.sync()
    keys = [each.uri.removeprefix(f"{BUCKET}/state/") for each in store.list(f"{BUCKET}/state/")]
    assert keys == ["both", "deep/new", "old"]  # the other host has it still
    assert store.get(f"{BUCKET}/state/both") == b"one"
    (two / "old").unlink()
    (two / "deep" / "new").write_text("changed")
    synced.sync()
    keys = [each.uri.removeprefix(f"{BUCKET}/state/") for each in store.list(f"{BUCKET}/state/")]
    assert keys == ["both", "deep/new"]
    assert store.get(f"{BUCKET}/state/deep/new") == b"changed"


def test_a_host_clears_its_own_folder_and_no_other_ones(store, tmp_path):
    """The others have copies of it, from the execution before."""
    for name in ("algo-1/a", "algo-2/b", "algo-3/c"):
        store.put(f"{BUCKET}/state/{name}", b"kept")
    trees = hosts(tmp_path)
    one, two = (tree / "checkpoints" for tree in trees.values())
    synced = SyncedFolder(Synced(f"{BUCKET}/state/", "checkpoints", restore=True), store, trees)
    synced.restore()
    (one / "algo-1" / "a").unlink()
    (one / "algo-2" / "b").unlink()
    (one / "algo-3" / "c").unlink()
    keys = [f"{BUCKET}/state/algo-2/b", f"{BUCKET}/state/algo-3/c"]
    for _ in range(2):  # the copies on the other host do not come back
        synced.sync()
        assert [each.uri for each in store.list(f"{BUCKET}/state/")] == keys
    (one / "algo-1" / "a").write_text("new")
    synced.sync()
    assert store.get(f"{BUCKET}/state/algo-1/a") == b"new"
    assert (two / "algo-1" / "a").read_text() == "kept"


def test_s3_gets_the_files_behind_a_link(store, tmp_path):
    """`latest -> step-7`: S3 has no links, so it gets the files under both names."""
    trees = {"algo-1": tmp_path / "algo-1"}
    folder = trees["algo-1"] / "checkpoints"
    (folder / "step-7").mkdir(parents=True)
    (folder / "step-7" / "w").write_text("7")
    (folder / "latest").symlink_to("step-7")
    (folder / "step-7" / "loop").symlink_to(folder)
    synced = SyncedFolder(Synced(f"{BUCKET}/state/", "checkpoints"), store, trees)
    synced.sync()
    assert [each.uri for each in store.list(f"{BUCKET}/state/")] == [
        f"{BUCKET}/state/{name}" for name in ("latest/w", "step-7/w")
    ]
    (folder / "latest").unlink()
    synced.sync()
    assert [each.uri for each in store.list(f"{BUCKET}/state/")] == [f"{BUCKET}/state/step-7/w"]


def test_a_file_that_is_being_written_waits_for_the_next_time(store, tmp_path, monkeypatch):
    """S3 refuses the parts of an upload that do not fit together."""
    trees = hosts(tmp_path, 1)
    synced = SyncedFolder(Synced(f"{BUCKET}/state/", "checkpoints"), store, trees)
    path = trees["algo-1"] / "checkpoints" / "x"
    path.write_text("before")
    put = FolderStore.put

    def too_small(self, uri, source):
        path.write_text("new")
        raise ApiError("EntityTooSmall", "Your proposed upload is smaller than the minimum allowed object size.")

    monkeypatch.setattr(FolderStore, "put", too_small)
    synced.sync(is_last=False)
    with pytest.raises(ApiError, match="EntityTooSmall"):
        synced.sync(is_last=True)
    monkeypatch.setattr(FolderStore, "put", put)
    synced.sync(is_last=False)
    assert store.get(f"{BUCKET}/state/x") == b"new"


def test_an_error_of_the_syncing_thread_reaches_the_job(store, tmp_path):
    trees = hosts(tmp_path, 1)
    synced = SyncedFolder(Synced(f"{BUCKET}/state/", "checkpoints"), store, trees)
    store.put(f"{BUCKET}/state", b"an object in the place of the folder")
    (trees["algo-1"] / "checkpoints" / "x").write_text("x")
    with pytest.raises(Exception, match="InvalidKey"), Syncing([synced], 0.01, lambda folder: None) as syncing:
        syncing._thread.join(10)


def test_archives_hold_the_files_and_links_of_all_hosts(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "same").write_text(folder.name)
    (two / "only").write_text("two")
    (one / "best").symlink_to(one / "deep" / "same")
    (one / "broken").symlink_to("/opt/ml/nothing")
    (one / "latest").symlink_to("deep")
    (two / "latest").mkdir()
    (two / "latest" / "other").write_text("behind a link of the first host")
    (one / "deep" / "loop").symlink_to("..")
    store = FolderStore(tmp_path / "root")
    prefix = f"{BUCKET}/job/output"
    uri = artifacts.upload([one, two], "model", Artifacts(prefix), store, tmp_path)
    assert uri == f"{prefix}/model.tar.gz"
    store.download(uri, tmp_path / "model.tar.gz")
    with tarfile.open(tmp_path / "model.tar.gz") as tar:
        links = {each.name: each.linkname for each in tar if each.issym()}
        assert links == {"best": "deep/same", "broken": "/opt/ml/nothing", "latest": "deep", "deep/loop": ".."}
        assert sorted({*tar.getnames()} - {*links}) == ["deep", "deep/same", "only"]
        assert tar.extractfile("deep/same").read() == b"one"
    as_files = Artifacts(f"{prefix}2", compress=False)
    assert artifacts.upload([one, two], "model", as_files, store, tmp_path) == f"{prefix}2/model/"
    assert [each.uri for each in store.list(f"{prefix}2")] == [
        f"{prefix}2/model/{name}" for name in ("best", "deep/same", "latest/other", "latest/same", "only")
    ]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert artifacts.upload([empty], "model", Artifacts(prefix), store, tmp_path) == ""
