"""Whether the user wants devices named cuda to be the CPU: ALGORUN_CUDA_ON_CPU."""

import os

from algorun_train.ranks.devices import CUDA_ON_CPU


def cuda_on_cpu_where_wished() -> None:
    """Leads devices named cuda to the CPU where ALGORUN_CUDA_ON_CPU is set and not 0; does nothing elsewhere.

    The packages that users' scripts import call it, on every rank. Raises UserError for a value that is not 0, 1 or
    `script`.
    """
    wish = os.environ.get(CUDA_ON_CPU, "")
    if wish not in ("", "0"):
        from .cuda_on_cpu import install  # only where it is wished: it changes torch

        install(wish)
