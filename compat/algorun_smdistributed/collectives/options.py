"""Arguments of these libraries that have no effect here, and those that cannot be had."""

from __future__ import annotations

from collections.abc import Mapping

from algorun_smdistributed.script_types import Given
from algorun_train.common.errors import UserError

# They name operations, or tune how the libraries send.
TUNING = (
    "name", "use_locking", "device_dense", "device_sparse", "compression", "num_groups", "groups", "bucket_cap_mb",
    "ignore_name_scope", "persistent", "param_index", "num_params",
)  # fmt: skip
# What such an argument is where it asks for nothing.
PLAIN = {
    "backward_passes_per_step": 1, "gradient_predivide_factor": 1.0, "prescale_factor": 1.0, "postscale_factor": 1.0,
    "average_aggregated_gradients": False, "process_set": None, "sparse_as_dense": False, "scale_local_gradients": True,
}  # fmt: skip


class Compression:
    """The documented ways to send gradients. Here both send full precision: results do not differ."""

    none = "none"
    fp16 = "fp16"


def check(call: str, given: Mapping[str, Given]) -> None:
    """Raises TypeError for an argument that these libraries do not have, UserError for one that cannot be had."""
    for name, value in given.items():
        if name in TUNING:
            continue
        if name not in PLAIN:
            raise TypeError(f"{call} has no argument {name!r}")
        if value != PLAIN[name]:
            raise UserError(f"{call}: {name} = {value!r}; allowed: {PLAIN[name]!r}; fix: leave {name} out")
