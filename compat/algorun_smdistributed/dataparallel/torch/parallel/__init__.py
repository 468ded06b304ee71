"""smdistributed.dataparallel.torch.parallel: DistributedDataParallel is torch's own."""

from .distributed import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
