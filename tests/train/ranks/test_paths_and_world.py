"""Where a job reads and writes, and who a rank is: pure functions of the environment."""

from pathlib import Path

import pytest

from algorun_train.common.errors import UserError
from algorun_train.options.folders import find_folders
from algorun_train.options.job_options import DdpJobOptions
from algorun_train.ranks.devices import choose_device
from algorun_train.ranks.world import World, read_world

TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "algo-1",
    "MASTER_PORT": "29500",
}


def test_sagemakers_variables_and_its_folder():
    environ = {"SM_CHANNEL_TRAIN": "/c/train", "SM_CHANNEL_VAL": "/c/val", "SM_MODEL_DIR": "/m"}
    paths = find_folders(DdpJobOptions(), environ, lambda folder: folder == Path("/opt/ml"))
    assert (paths.train, paths.validation, paths.model) == (Path("/c/train"), Path("/c/val"), Path("/m"))
    assert paths.checkpoints == Path("/opt/ml/checkpoints")
    assert paths.output == Path("/opt/ml/output/data")


def test_validation_wins_over_val_and_flags_over_both():
    environ = {"SM_CHANNEL_VALIDATION": "/long", "SM_CHANNEL_VAL": "/short"}
    assert find_folders(DdpJobOptions(), environ, lambda _: False).validation == Path("/long")
    assert find_folders(DdpJobOptions(validation=Path("/flag")), environ, lambda _: False).validation == Path("/flag")


def test_the_one_channel_of_the_sdk_is_called_training():
    environ = {"SM_CHANNEL_TRAINING": "/c/training", "SM_CHANNEL_MODEL": "/c/model"}
    paths = find_folders(DdpJobOptions(), environ, lambda _: False)
    assert (paths.train, paths.unread) == (Path("/c/training"), ())
    paths = find_folders(DdpJobOptions(), {**environ, "SM_CHANNEL_TRAIN": "/c/train"}, lambda _: False)
    assert (paths.train, paths.unread) == (Path("/c/train"), ("training",))


@pytest.mark.parametrize("names", [("IMAGES",), ("DATA", "EVAL"), ("VALIDATION", "TEST")])
def test_data_in_channels_of_other_names_is_not_replaced_by_the_embedded_data(names):
    environ = {f"SM_CHANNEL_{name}": f"/c/{name}" for name in names}
    with pytest.raises(
        UserError, match="is given, and no channel 'train': .* embedded data; .*; fix: name the channel train"
    ):
        find_folders(DdpJobOptions(), environ, lambda _: False)
    named = find_folders(DdpJobOptions(train=Path(f"/c/{names[0]}")), environ, lambda _: False)
    assert named.unread == tuple(sorted(name.lower() for name in names[1:] if name != "VALIDATION"))


@pytest.mark.parametrize("name", ["CODE", "SM_DRIVERS", "MODEL", "SAGEMAKER_REMOTE_FUNCTION_BOOTSTRAP"])
def test_channels_without_data_leave_the_embedded_data(name):
    paths = find_folders(DdpJobOptions(), {f"SM_CHANNEL_{name}": "/c", "SM_CHANNELS": "[]"}, lambda _: False)
    assert (paths.train, paths.unread) == (None, ())


def test_without_sagemaker_everything_goes_below_output():
    paths = find_folders(DdpJobOptions(), {}, lambda _: False)
    assert paths.train is None
    assert {paths.checkpoints, paths.model, paths.output} == {
        Path("output/checkpoints"),
        Path("output/model"),
        Path("output/data"),
    }


def test_another_base_folder():
    paths = find_folders(
        DdpJobOptions(), {"SAGEMAKER_BASE_DIR": "/sim/host1"}, lambda folder: folder == Path("/sim/host1")
    )
    assert paths.checkpoints == Path("/sim/host1/checkpoints")


def test_world_of_torchrun_and_of_nobody():
    assert read_world({}) == World()
    assert read_world(TORCHRUN) == World(3, 4, 1, 2, True)


def test_a_partial_or_contradictory_environment_is_refused():
    with pytest.raises(UserError, match="MASTER_PORT not set"):
        read_world({k: v for k, v in TORCHRUN.items() if k != "MASTER_PORT"})
    with pytest.raises(UserError, match="contradict"):
        read_world(TORCHRUN | {"RANK": "4"})
    with pytest.raises(UserError, match="WORLD_SIZE='many'"):
        read_world(TORCHRUN | {"WORLD_SIZE": "many"})


def test_devices():
    world = World(3, 4, 1, 2, True)
    assert choose_device(world, 0, one_visible=False) == "cpu"
    assert choose_device(world, 2, one_visible=False) == "cuda:1"
    assert choose_device(world, 1, one_visible=True) == "cuda:0"
    with pytest.raises(UserError, match=r"LOCAL_RANK 1 .* has 1"):
        choose_device(world, 1, one_visible=False)
