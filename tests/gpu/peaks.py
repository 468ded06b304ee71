"""How many bf16 operations a second a GPU can do at most, by its name: what MFU (model FLOPs utilisation) is a share of.

Dense tensor-core figures of NVIDIA's data sheets (nvidia.com/en-us/data-center/NAME; those for sparse matrices, which
the sheets print larger, are twice as high). An unknown device has no MFU. Not in the table: the A10G, for which no data
sheet of NVIDIA's was found and other sources differ (70 and 125); GPUs before Ampere, which have no bf16; MIG slices.
"""

from __future__ import annotations

import re

T = 1e12  # operations per second
PEAKS = (
    (r"NVIDIA A100-(SXM4|PCIE)-\d+GB|NVIDIA A100 80GB PCIe", 312 * T),  # a100
    (r"NVIDIA H100 80GB HBM3", 989 * T),  # h100: SXM, 1,979 with sparsity
    (r"NVIDIA H100 PCIe", 756 * T),  # h100: PCIe, 1,513 with sparsity
    (r"NVIDIA H100 NVL", 835 * T),  # h100: NVL, 1,671 with sparsity
    (r"NVIDIA H200", 989 * T),  # h200: SXM, 1,979 with sparsity
    (r"NVIDIA L4", 121 * T),  # l4: 242 with sparsity
    (r"NVIDIA L40S", 362 * T),  # l40s
    (r"NVIDIA B200", 2250 * T),  # dgx-b200: 8 GPUs, 36,000 with sparsity
)


def peak(name: str) -> float | None:
    """Operations per second, None for a device that is not in the table."""
    return next((value for pattern, value in PEAKS if re.fullmatch(pattern, name)), None)


def mfu(name: str, operations: float, seconds: float) -> float | None:
    """The share of a device's peak, 0..1, that `operations` of one device in `seconds` are."""
    most = peak(name)
    return None if most is None else operations / seconds / most
