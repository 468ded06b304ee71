"""smdistributed.dataparallel.torch.parallel.distributed: DistributedDataParallel is torch's own.

Like the library's, it starts the process group by itself where the script has not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from ..distributed import init_process_group


class DistributedDataParallel(TorchDistributedDataParallel):
    """torch's DistributedDataParallel, arguments included."""

    def __init__(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        init_process_group()
        super().__init__(module, *args, **kwargs)
