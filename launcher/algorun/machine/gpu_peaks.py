"""The most operations per second of a GPU, for MFU: dense products of bf16 (fp16 where there is no bf16), as NVIDIA states
them. Where a data sheet names the value with sparsity, half of it stands here.
"""

from __future__ import annotations

import re

from .nvidia import Nvidia

# By words of the model as the driver names it ("NVIDIA A100-SXM4-40GB"). The first row whose words are all there counts.
PEAKS: tuple[tuple[tuple[str, ...], float], ...] = (
    (("B200",), 2250e12),  # NVIDIA HGX B200: 36 petaFLOPS of 8 GPUs with sparsity
    (("H200", "NVL"), 835e12),  # NVIDIA H200 data sheet: 1,671 with sparsity
    (("H200",), 989e12),  # the same, SXM: 1,979 teraFLOPS with sparsity
    (("H100", "NVL"), 835e12),  # NVIDIA H100 data sheet: 1,671 with sparsity
    (("H100", "PCIe"), 756e12),  # the same: 1,513 with sparsity
    (("H100",), 989e12),  # the same, SXM: 1,979 with sparsity
    (("A100",), 312e12),  # NVIDIA A100 data sheet, all forms
    (("A10G",), 70e12),  # NVIDIA A10G data sheet (AWS): 70, with sparsity 140
    (("L40S",), 362e12),  # NVIDIA L40S data sheet: 362.05, with sparsity 733
    (("L4",), 121e12),  # NVIDIA L4 data sheet: 242 with sparsity
    (("T4",), 65e12),  # NVIDIA T4 data sheet, fp16
    (("V100",), 125e12),  # NVIDIA V100 data sheet, SXM2, fp16
)


def peak(model: str) -> float:
    """Operations per second of one GPU of this model; 0.0 if it is not in the table, also for a MIG slice."""
    words = set(re.split(r"[\s-]+", model))
    if "MIG" in words:
        return 0.0
    return next((value for names, value in PEAKS if words.issuperset(names)), 0.0)


def peak_of_all(found: Nvidia, ranks: int) -> float:
    """The same of `ranks` ranks with a GPU each; 0.0 unless all GPUs of the host are whole, of one model and suffice."""
    models = found.models
    if any(found.slices) or len(set(models)) != 1 or ranks > len(models):
        return 0.0
    return ranks * peak(models[0])
