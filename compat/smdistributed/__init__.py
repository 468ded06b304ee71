"""The import names of AWS's closed smdistributed libraries, on open parts. Source: AWS's public documentation."""

import os

CUDA_ON_CPU = "ALGORUN_CUDA_ON_CPU"


def cuda_on_cpu_where_wished() -> None:
    """Leads devices named cuda to the CPU where the variable asks for it; costs a look at the environment elsewhere.

    Called by the packages that users' scripts import. Raises UserError on a value that is not 0, 1 or "script".
    """
    wish = os.environ.get(CUDA_ON_CPU, "")
    if wish not in ("", "0"):
        from .cuda_on_cpu import install

        install(wish)
