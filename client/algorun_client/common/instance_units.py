"""How many cores and GPUs an instance type has: CloudWatch counts 100 % for each. Pure.

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
