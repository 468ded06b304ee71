"""Which GPUs each simulated host gets, on machines that are folders of the test's."""

from __future__ import annotations

import pytest

from algorun.commands.simulated_gpus import give_out
from algorun.common.errors import UserError
from algorun.machine import probe


def machine(folder, gpus: int) -> str:
    (folder / "dev").mkdir(parents=True, exist_ok=True)
    for name in (*(f"nvidia{number}" for number in range(gpus)), "nvidiactl", "nvidia-uvm"):
        (folder / "dev" / name).touch()
    return str(folder)


def given(*args, **named) -> tuple:
    """What the hosts see, and why they compute on the CPU; there is nothing to warn of."""
    found = give_out(*args, **named)
    assert not found.warning
    return found[:2]


@pytest.mark.parametrize(
    ("gpus", "hosts", "slots", "expected"),
    [(8, 2, 2, ["0,1", "2,3"]), (4, 2, 2, ["0,1", "2,3"]), (1, 1, 1, ["0"]), (8, 3, 1, ["0", "1", "2"])],
)
def test_every_host_has_a_gpu_of_its_own_for_each_rank(gpus, hosts, slots, expected, tmp_path):
    root = machine(tmp_path, gpus)
    found = give_out({}, hosts, slots, root=root)
    assert (found.visible, found.why_cpu) == (expected, "")
    counts = [probe.gpus({"CUDA_VISIBLE_DEVICES": visible}, root).value for visible in found.visible]
    assert counts == [slots] * hosts  # SM_NUM_GPUS


def test_the_names_of_cuda_visible_devices_stay_as_they_are(tmp_path):
    root = machine(tmp_path, 8)
    assert give_out({"CUDA_VISIBLE_DEVICES": "GPU-8932f937,3, GPU-c6398fd0,5,7"}, 2, 2, root=root).visible == [
        "GPU-8932f937,3",
        "GPU-c6398fd0,5",
    ]
    assert give_out({"CUDA_VISIBLE_DEVICES": "MIG-0a1b"}, 1, 1, root=root).visible == ["MIG-0a1b"]


def test_mig_slices_are_for_one_rank_alone(tmp_path):
    """A process sees the first slice of its variable; NCCL refuses two slices of one GPU, and names tell no GPU."""
    root = machine(tmp_path, 1)
    said = "the simulated hosts compute on the CPU: a process sees only one MIG slice, and NCCL cannot tell two slices of a GPU apart"
    assert given({"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, 2, 1, root=root) == (["", ""], said)
    (tmp_path / "proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0").mkdir(parents=True)
    assert given({}, 2, 1, root=root) == (["", ""], said)
    assert given({}, 1, 1, root=root) == (["0"], "")
    machine(tmp_path, 3)
    assert given({"CUDA_VISIBLE_DEVICES": "1,2"}, 2, 1, root=root) == (["1", "2"], "")


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (
            "7,0",
            "'7,0' names '7', which is not a GPU of this machine; allowed: 0 to 1, or UUIDs of nvidia-smi -L, each once",
        ),
        ("0,0", "'0,0' names a GPU twice; allowed: 0 to 1"),
    ],
)
def test_a_choice_that_leaves_no_gpu_is_an_error(value, what, tmp_path):
    with pytest.raises(UserError) as error:
        give_out({"CUDA_VISIBLE_DEVICES": value}, 2, 1, root=machine(tmp_path, 2))
    assert what in str(error.value)


@pytest.mark.parametrize(
    ("value", "ignored"),
    [
        ("3,1,9,0", "'9', '0'"),
        ("3,1,GPU-dead,x,0", "'GPU-dead', 'x', '0'"),
        ("3,1,4", "'4'"),
        ("3,1,4,-1,0", "'4'"),
    ],
)
def test_a_choice_that_leaves_some_gpus_is_used_as_run_does_and_one_line_names_the_rest(value, ignored, tmp_path):
    root = machine(tmp_path, 4)
    for number in range(4):
        folder = tmp_path / f"proc/driver/nvidia/gpus/0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"GPU UUID: \t GPU-{number}\nDevice Minor: \t {number}\n")
    warning = (
        f"CUDA_VISIBLE_DEVICES: {ignored.split(',')[0]} in {value!r} is not a GPU of this machine, which has 4; CUDA ignores "
        f"{ignored}; fix: 0 to 3, or UUIDs of nvidia-smi -L; unset it for all GPUs; CUDA_VISIBLE_DEVICES= (empty) for a job "
        "on the CPU"
    )
    assert give_out({"CUDA_VISIBLE_DEVICES": value}, 2, 1, root=root) == (["3", "1"], "", warning)
    few = give_out({"CUDA_VISIBLE_DEVICES": value}, 3, 1, root=root)
    assert few.why_cpu.endswith("there are 2 (CUDA_VISIBLE_DEVICES)")
    assert few.warning == warning


def test_names_that_exist_and_a_chosen_cpu_need_no_warning(tmp_path):
    root = machine(tmp_path, 4)
    assert give_out({"CUDA_VISIBLE_DEVICES": "3,1,-1,9"}, 2, 1, root=root).warning == ""
    assert give_out({"CUDA_VISIBLE_DEVICES": "3,9"}, 2, 1, cpu_torch=True, root=root).warning == ""


def test_too_few_gpus_mean_the_cpu_on_every_host_and_one_line_says_why(tmp_path):
    root = machine(tmp_path, 1)
    found = give_out({}, 2, 2, root=root)
    assert found.visible == ["", ""]
    assert found.why_cpu == (
        "the simulated hosts compute on the CPU: 2 hosts x 2 ranks need 4 GPUs, but there is 1 (/dev/nvidia*)"
    )
    assert [probe.gpus({"CUDA_VISIBLE_DEVICES": visible}, root).value for visible in found.visible] == [0, 0]
    found = give_out({"CUDA_VISIBLE_DEVICES": "0,-1,0"}, 3, 1, root=root)
    assert found.visible == [""] * 3
    assert found.why_cpu.endswith("3 hosts x 1 rank need 3 GPUs, but there is 1 (CUDA_VISIBLE_DEVICES)")


@pytest.mark.parametrize("chosen", ["", " ", "-1"])
def test_a_machine_without_gpus_and_a_chosen_cpu_need_no_words(chosen, tmp_path):
    root = machine(tmp_path, 0)
    assert given({}, 2, 2, root=root) == ([None, None], "")
    (tmp_path / "dev/nvidia0").touch()
    assert given({"CUDA_VISIBLE_DEVICES": chosen}, 2, 2, root=root) == (["", ""], "")


def test_a_process_per_host_gets_an_equal_share_of_all_gpus(tmp_path):
    root = machine(tmp_path, 8)
    assert give_out({}, 3, 1, whole_hosts=True, root=root).visible == ["0,1", "2,3", "4,5"]


def test_bundled_programs_take_the_cpu_where_torch_is_built_without_cuda(tmp_path):
    root = machine(tmp_path, 8)
    assert given({}, 2, 2, cpu_torch=True, root=root) == (
        ["", ""],
        "the simulated hosts compute on the CPU: torch is built without CUDA",
    )
    for wrong in ("7", "0,0", "9"):
        assert give_out({"CUDA_VISIBLE_DEVICES": wrong}, 2, 2, cpu_torch=True, root=root).visible == ["", ""]
    assert given({"CUDA_VISIBLE_DEVICES": "-1"}, 2, 2, cpu_torch=True, root=root) == (["", ""], "")
    assert give_out({}, 2, 2, cpu_torch=True, root=machine(tmp_path / "none", 0)).why_cpu == ""


@pytest.mark.parametrize("value", ["", "-1", "0", "0,0", "7", "GPU-dead"])
def test_a_machine_without_gpus_leaves_the_variable_alone(value, tmp_path):
    root = machine(tmp_path, 0)
    assert given({"CUDA_VISIBLE_DEVICES": value}, 2, 2, root=root) == ([None, None], "")
