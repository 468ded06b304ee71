"""How many cores and GPUs an instance type has: CloudWatch counts 100 % for each. How much memory its GPUs have. Pure.

Source: the tables of EC2's instance types. SageMaker has no call for them, and EC2's needs a right of its own.
"""

from __future__ import annotations

import re

TYPE = re.compile(r"ml\.([a-z0-9-]+)\.(?:(\d*)x?large|medium|metal)")
CORES_OF_XLARGE = 4  # an `Nxlarge` has N times as many, in every family
ODD_CORES = {"ml.c4.8xlarge": 36, "ml.t2.medium": 2, "ml.t3.medium": 2}
WITHOUT_GPU = re.compile(r"[cmrtxhdi]\d[a-z0-9-]*|inf\d|trn\d[a-z]*")
# The sizes with another number of GPUs than one.
GPUS = {
    "p2": {"8xlarge": 8, "16xlarge": 16},
    "p3": {"8xlarge": 4, "16xlarge": 8},
    "p3dn": {"24xlarge": 8},
    "p4d": {"24xlarge": 8},
    "p4de": {"24xlarge": 8},
    "p5": {"48xlarge": 8},
    "p5e": {"48xlarge": 8},
    "p5en": {"48xlarge": 8},
    "p6-b200": {"48xlarge": 8},
    "p6-b300": {"48xlarge": 8},
    "p6e-gb200": {"36xlarge": 4},
    "g4dn": {"12xlarge": 4},
    "g5": {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8},
    "g6": {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8},
    "g6e": {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8},
    "gr6": {},
    "g7e": {"12xlarge": 2, "24xlarge": 4, "48xlarge": 8},
}

# 10^9 bytes of one GPU's memory, as its maker names it; the driver shows a little more of all of them.
GPU_GB = {
    "p2": 12,
    "p3": 16,
    "p3dn": 32,
    "p4d": 40,
    "p4de": 80,
    "p5": 80,
    "p5e": 141,
    "p5en": 141,
    "p6-b200": 180,
    "p6-b300": 268,
    "p6e-gb200": 185,
    "g4dn": 16,
    "g5": 24,
    "g6": 24,
    "g6e": 48,
    "gr6": 24,
    "g7e": 96,
}
WITHOUT_BF16 = ("p2", "p3", "p3dn", "g4dn")  # GPUs older than Ampere


def cores(instance: str) -> int | None:
    """The number of virtual CPUs of an instance type. None if it is unknown."""
    if instance in ODD_CORES:
        return ODD_CORES[instance]
    found = TYPE.fullmatch(instance)
    if found is None or found[2] is None:  # medium and metal follow no rule
        return None
    if not instance.endswith("xlarge"):
        return CORES_OF_XLARGE // 2
    return CORES_OF_XLARGE * int(found[2] or 1)


def gpus(instance: str) -> int | None:
    """The number of GPUs of an instance type. None if it is unknown."""
    found = TYPE.fullmatch(instance)
    if found is None:
        return None
    if found[1] in GPUS:
        return GPUS[found[1]].get(instance.rpartition(".")[2], 1)
    return 0 if WITHOUT_GPU.fullmatch(found[1]) else None


def gpu_bytes(instance: str) -> int | None:
    """The memory of one GPU of an instance type. None if it has no GPU, or is unknown."""
    found = TYPE.fullmatch(instance)
    return GPU_GB[found[1]] * 10**9 if found and found[1] in GPU_GB and gpus(instance) else None


def computes_bf16(instance: str) -> bool:
    """Whether the GPUs of an instance type have units for bfloat16."""
    found = TYPE.fullmatch(instance)
    return found is None or found[1] not in WITHOUT_BF16
