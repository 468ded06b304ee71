"""The device of a rank on machines with GPUs: /dev is a folder of the test's, torch.cuda answers as drivers do."""

import warnings
from types import SimpleNamespace

import pytest
import torch

from algorun_train.common.errors import UserError
from algorun_train.ranks import devices
from algorun_train.ranks.devices import choose_device, find, hidden_on_purpose
from algorun_train.ranks.world import World

ALONE = World()
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by downloading and "
    "installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)
NOT_READY = (
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might "
    "have already set an error? Error 802: system not yet initialized"
)
NO_DRIVER = (
    "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from "
    "http://www.nvidia.com/Download/index.aspx"
)


@pytest.fixture
def dev(tmp_path):
    """The device files of a machine with two GPUs."""
    folder = tmp_path / "dev"
    folder.mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (folder / name).touch()
    return str(folder)


@pytest.fixture
def cuda(monkeypatch):
    """A torch with CUDA; `broken(words)` is one whose driver says so, `works(gpus)` one that sees GPUs."""

    def broken(words: str) -> None:
        def available() -> bool:
            warnings.warn(f"CUDA initialization: {words}", UserWarning, stacklevel=1)
            return False

        def init() -> None:
            raise RuntimeError(f"{words}\nCapturing an error by frame #0: somewhere in C++")

        monkeypatch.setattr(torch.cuda, "is_available", available)
        monkeypatch.setattr(torch.cuda, "init", init)

    def works(gpus: int, free: int = 79, error: str = "") -> list[torch.device]:
        taken: list[torch.device] = []

        def memory(device: torch.device) -> tuple[int, int]:
            if error:
                raise torch.AcceleratorError(error)
            return free * 2**30, 80 * 2**30

        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "set_device", taken.append)
        monkeypatch.setattr(torch.cuda, "mem_get_info", memory)
        return taken

    monkeypatch.setattr(torch.version, "cuda", "12.8")
    return SimpleNamespace(broken=broken, works=works)


@pytest.mark.parametrize("words", [TOO_OLD, NOT_READY, NO_DRIVER])
def test_a_gpu_that_torch_cannot_use_is_refused_with_the_drivers_words(words, dev, cuda, recwarn):
    cuda.broken(words)
    with pytest.raises(UserError) as error:
        find(ALONE, {}, print, dev)
    text = str(error.value)
    assert f"this host has 2 GPUs ({dev}/nvidia0, ..), and torch can use none: {words}; fix: `algorun doctor`" in text
    assert "CUDA_VISIBLE_DEVICES= (empty)" in text
    assert "C++" not in text
    assert not recwarn.list, "the same words twice"


def test_a_driver_that_fails_is_not_blamed_on_the_choice_of_gpus(dev, cuda):
    cuda.broken(NOT_READY)
    with pytest.raises(UserError, match="torch can use none: Unexpected error .* Error 802"):
        find(ALONE, {"CUDA_VISIBLE_DEVICES": "0"}, print, dev)


@pytest.mark.parametrize("value", ["", " ", "-1", "-1,0", "none", "NoDevFiles", "void", ",0"])
def test_hidden_gpus_are_a_choice_for_the_cpu(value, dev, cuda):
    cuda.broken("No CUDA GPUs are available")
    assert find(ALONE, {"CUDA_VISIBLE_DEVICES": value}, print, dev) == torch.device("cpu")


@pytest.mark.parametrize(
    ("value", "library", "chosen"),
    [
        ("void", False, True),
        ("none", False, True),
        ("", False, True),
        ("all", False, False),  # an image's own setting
        ("void", True, False),  # CDI gives GPUs to a container so
    ],
)
def test_a_container_that_was_given_no_gpu_is_a_choice_for_the_cpu(value, library, chosen, dev, cuda, monkeypatch):
    cuda.broken(NO_DRIVER)
    monkeypatch.setattr(devices, "driver_library", lambda: library)
    environ = {"NVIDIA_VISIBLE_DEVICES": value}
    if chosen:
        assert find(ALONE, environ, print, dev) == torch.device("cpu")
    else:
        with pytest.raises(UserError, match="torch can use none"):
            find(ALONE, environ, print, dev)


def test_devices_named_cuda_on_the_cpu_are_a_choice_for_the_cpu():
    assert hidden_on_purpose({"ALGORUN_CUDA_ON_CPU": "1"})
    assert hidden_on_purpose({"ALGORUN_CUDA_ON_CPU": "script"})
    assert not hidden_on_purpose({"ALGORUN_CUDA_ON_CPU": "0"})


@pytest.mark.parametrize("value", ["7", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "0,0", "all"])
def test_a_choice_of_gpus_that_do_not_exist_is_named(value, dev, cuda):
    cuda.broken("No CUDA GPUs are available")
    with pytest.raises(UserError, match="No CUDA GPUs are available; allowed: their numbers") as error:
        find(ALONE, {"CUDA_VISIBLE_DEVICES": value}, print, dev)
    assert str(error.value).startswith(f"CUDA_VISIBLE_DEVICES={value!r} leaves no GPU: this host has 2 GPUs")


def test_a_torch_without_cuda_on_a_machine_with_gpus_is_refused(dev, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        UserError, match=r"is built without CUDA, and this host has 2 GPUs .*--variant cuda, or CUDA_VISIBLE"
    ):
        find(ALONE, {}, print, dev)
    assert find(ALONE, {"CUDA_VISIBLE_DEVICES": ""}, print, dev).type == "cpu"


@pytest.mark.parametrize("folder", ["empty", "absent"])
def test_a_machine_without_gpus_trains_on_the_cpu(folder, tmp_path, cuda):
    (tmp_path / "empty").mkdir()
    cuda.works(0)
    assert find(ALONE, {}, print, str(tmp_path / folder)).type == "cpu"


def test_a_gpu_that_works_is_taken_without_a_word(dev, cuda, capsys):
    taken = cuda.works(2)
    assert find(World(1, 2, 1, 2, True), {}, print, dev) == torch.device("cuda:1")
    assert taken == [torch.device("cuda:1")]
    assert capsys.readouterr().out == ""


def test_a_gpu_that_others_use_is_warned_of(dev, cuda):
    said: list[str] = []
    cuda.works(1, free=10)
    assert find(ALONE, {}, said.append, dev).type == "cuda"
    assert said == [
        "warning: GPU cuda:0 has 10.0 of 80.0 GiB free before training: another process may use it, nvidia-smi names it"
    ]


def test_memory_that_this_process_has_itself_is_not_blamed_on_others(dev, cuda, monkeypatch):
    said: list[str] = []
    cuda.works(1, free=10)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 69 * 2**30)
    find(ALONE, {}, said.append, dev)
    assert said == []


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: CUDA-capable device(s) is/are busy or unavailable",  # compute mode Exclusive_Process or Prohibited
        "CUDA error: out of memory",
    ],
)
def test_a_gpu_that_another_process_holds_is_one_error(words, dev, cuda):
    cuda.works(1, error=f"{words}\nCUDA kernel errors might be asynchronously reported at some other API call")
    with pytest.raises(UserError) as error:
        find(ALONE, {}, print, dev)
    assert str(error.value).startswith(f"GPU cuda:0 cannot be used: {words}; allowed: a GPU that no other process")


def test_more_ranks_than_gpus_say_what_hides_the_others():
    world = World(3, 4, 1, 2, True)
    with pytest.raises(UserError, match=r"LOCAL_RANK 1 has no GPU: this host has 1 \(CUDA_VISIBLE_DEVICES=0,9\); fix"):
        choose_device(world, 1, one_visible=False, visible="0,9")
    with pytest.raises(UserError, match="MIG-a,MIG-b.; CUDA shows a process one MIG slice; fix"):
        choose_device(world, 1, one_visible=False, visible="MIG-a,MIG-b")


@pytest.mark.parametrize(
    ("uuid", "known"),
    [
        ("8932f937-d72c-4106-c12f-20bd9faed9f6", "8932f937-d72c-4106-c12f-20bd9faed9f6"),
        ("00000000-0000-0000-0000-000000000000", ""),
    ],
)
def test_the_identity_of_a_gpu(uuid, known, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=uuid))
    assert devices.identity(torch.device("cuda:0")) == known
    assert devices.identity(torch.device("cpu")) == ""


def test_the_device_files_are_those_of_gpus(dev):
    assert devices.device_files(dev) == [f"{dev}/nvidia0", f"{dev}/nvidia1"]
