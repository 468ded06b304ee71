"""What CUDA_VISIBLE_DEVICES leaves of a machine's GPUs."""

from __future__ import annotations

import pytest

from algorun.machine import probe
from algorun.machine.visible_gpus import Visible, visible

UUIDS = ("GPU-c6398fd0-9366-8e15-5d6a-369da852f85b", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6")


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (None, 2),
        ("0", 1),
        ("1,0", 2),
        (" 1 , 0 ", 2),
        ("0,", 1),
        ("0,-1,1", 1),  # by convention: none from here on
        ("0,none", 1),
        ("1gpu,0", 2),  # as C's strtoul reads it
        (UUIDS[0], 1),
        ("GPU-8932f937", 1),  # shortened
        (f"{UUIDS[1]},{UUIDS[0]}", 2),
        ("MIG-66a8a9ac-a1ad-5a1e-9a2f-3e6d7d1a9cf0", 1),
        ("MIG-66a8a9ac,MIG-77a8a9ac", 1),  # a process gets the first slice alone
    ],
)
def test_gpus_that_are_there(value, count):
    assert visible(value, 2, UUIDS) == Visible(count, value)


@pytest.mark.parametrize("value", ["", " ", "-1", "-1,0", "none", "void", "NoDevFiles"])
def test_none_on_purpose(value):
    assert visible(value, 2, UUIDS) == Visible(0, value, hidden=True)


@pytest.mark.parametrize(
    ("value", "count", "wrong"),
    [
        ("7", 0, "7"),
        ("0,9,1", 1, "9"),
        ("GPU-dead", 0, "GPU-dead"),
        ("all", 0, "all"),  # NVIDIA_VISIBLE_DEVICES knows it, CUDA does not
    ],
)
def test_gpus_that_are_not_there(value, count, wrong):
    assert visible(value, 2, UUIDS) == Visible(count, value, wrong=wrong)


@pytest.mark.parametrize(("value", "wrong"), [("0,0", "0"), ("GPU-8932,GPU-8932f937", "GPU-8932f937")])
def test_a_gpu_that_is_named_twice(value, wrong):
    assert visible(value, 2, UUIDS) == Visible(0, value, wrong=wrong, twice=True)


def test_what_cannot_be_known_is_not_called_wrong():
    assert visible("GPU-dead", 2, ()) == Visible(1, "GPU-dead")
    assert visible("7", 0, ()) == Visible(0, "7")  # no GPU at all: a job on the CPU


@pytest.mark.parametrize(
    ("value", "library", "count"),
    [
        ("void", False, 0),
        ("none", False, 0),
        ("", False, 0),
        ("all", False, 2),  # an image's own setting
        ("void", True, 2),  # CDI gives GPUs to a container so
    ],
)
def test_a_container_that_was_given_no_gpu(value, library, count, tmp_path):
    """A privileged one sees the device files all the same."""
    for path in ("dev/nvidia0", "dev/nvidia1", *(["usr/lib/libcuda.so.1"] if library else [])):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    found = probe.look({"NVIDIA_VISIBLE_DEVICES": value}, str(tmp_path))
    assert (found.gpus.value, found.visible.hidden) == (count, count == 0)
    assert found.gpus.source == ("/dev/nvidia*" if count else "NVIDIA_VISIBLE_DEVICES")
