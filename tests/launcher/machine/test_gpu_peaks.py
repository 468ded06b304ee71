"""The peaks of GPUs that MFU is measured against."""

from __future__ import annotations

import pytest

from algorun.machine.gpu_peaks import PEAKS, peak, peak_of_all
from algorun.machine.nvidia import Nvidia


@pytest.mark.parametrize(
    ("model", "teraflops"),
    [
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200", 989),
        ("NVIDIA H200 NVL", 835),
        ("NVIDIA A10G", 70),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("Tesla T4", 65),
        ("Tesla V100-SXM2-16GB", 125),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 0),
        ("NVIDIA GeForce RTX 4090", 0),
        ("", 0),
    ],
)
def test_the_drivers_names_are_known(model, teraflops):
    assert peak(model) == teraflops * 1e12


def of_all(models, ranks, slices=()):
    return peak_of_all(Nvidia(models=models, slices=slices), ranks)


def test_only_equal_gpus_with_a_rank_each_have_a_peak_together():
    assert of_all(("NVIDIA L4",) * 4, 4) == 4 * 121e12
    assert of_all(("NVIDIA L4",) * 4, 2) == 2 * 121e12
    assert of_all(("NVIDIA L4",) * 4, 5) == 0.0
    assert of_all(("NVIDIA L4", "NVIDIA A10G"), 2) == 0.0
    assert of_all((), 2) == 0.0
    assert of_all(("NVIDIA H100 80GB HBM3",) * 2, 2, (0, 0)) == 2 * 989e12
    assert of_all(("NVIDIA H100 80GB HBM3",) * 2, 2, (0, 7)) == 0.0  # /proc has the name of the whole GPU


def test_no_row_is_hidden_by_an_earlier_one():
    for at, (names, _) in enumerate(PEAKS):
        assert not any(set(names) >= set(earlier) for earlier, _ in PEAKS[:at])
