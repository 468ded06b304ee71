"""Whether the user wants devices named cuda to be the CPU: ALGORUN_CUDA_ON_CPU."""

import os

from algorun_train.ranks.devices import CUDA_ON_CPU
from algorun_train.ranks.strict_cuda import loader as strict_loader

STRICT = "strict"


def cuda_on_cpu_where_asked() -> None:
    """Leads devices named cuda to the CPU where ALGORUN_CUDA_ON_CPU is set and not 0; does nothing elsewhere.

    The packages that users' scripts import call it, on every rank. Raises UserError for a value that is not 0, 1,
    `script` or `strict`.
    """
    value = os.environ.get(CUDA_ON_CPU, "")
    if value == STRICT and strict_loader.is_loaded():  # since the script's import of torch
        return
    if value not in ("", "0"):
        from .cuda_on_cpu import install  # only where it is asked for: it changes torch

        install(value)
