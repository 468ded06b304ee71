"""NVML's answers as figures, from a library compiled here: the real one needs a GPU."""

from __future__ import annotations

import pytest

from algorun.machine.nvml import Nvml, NvmlError
from algorun.machine.visible_gpus import places

from .fake_nvml import GPUS, build

UUIDS = ["GPU-00000000-aaaa", "GPU-00000001-aaaa", "GPU-00000002-aaaa", "GPU-00000003-aaaa"]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return str(build(tmp_path_factory.mktemp("nvml")) / "libnvidia-ml.so.1")


def test_every_gpu_tells_its_figures(library):
    nvml = Nvml(library)
    assert nvml.uuids() == UUIDS
    found = nvml.read(range(GPUS))
    assert [each.utilization for each in found] == [0.0, 0.25, 0.5, 0.75]
    assert {(each.memory_bytes, each.memory_size_bytes) for each in found} == {(20 << 30, 80 << 30)}
    assert {(each.power_w, each.temperature_c) for each in found} == {(123.5, 61.0)}
    assert [each.throttled for each in found] == [("power cap", "thermal (hardware)"), (), (), ()]
    assert [each.utilization for each in nvml.read([2])] == [0.5]


def test_what_a_gpu_does_not_say_is_not_known(library, monkeypatch):
    monkeypatch.setenv("FAKE_NVML", "divided")
    assert {each.utilization for each in Nvml(library).read(range(GPUS))} == {None}


def test_a_gpu_that_is_lost_ends_no_figures_of_the_others(library, monkeypatch):
    monkeypatch.setenv("FAKE_NVML", "lost")
    nvml = Nvml(library)
    assert nvml.uuids() == [UUIDS[0], "", *UUIDS[2:]]
    assert [each.utilization for each in nvml.read(range(GPUS))] == [0.0, None, 0.5, 0.75]


def test_a_library_that_does_not_work_is_an_error(library, monkeypatch):
    monkeypatch.setenv("FAKE_NVML", "broken")
    with pytest.raises(NvmlError, match="nvmlInit_v2 returned 18"):
        Nvml(library)


def test_no_library_and_another_library_are_errors():
    with pytest.raises(NvmlError, match="cannot open shared object"):
        Nvml("/absent/libnvidia-ml.so.1")
    with pytest.raises(NvmlError, match="has no nvmlInit_v2"):
        Nvml("libc.so.6")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("2,1", [1, 2]),
        ("GPU-00000003", [3]),
        ("0,9,1", [0, 1]),
        ("MIG-c6398fd0", []),
        ("none", []),
    ],
)
def test_only_gpus_that_ranks_see_are_measured(value, expected):
    assert places(value, UUIDS) == expected
