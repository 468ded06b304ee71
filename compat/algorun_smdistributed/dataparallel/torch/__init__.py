"""smdistributed.dataparallel.torch: import `torch_smddp` and use torch.distributed with the backend `smddp`.

The guides of versions 1.0 to 1.3 name `get_rank`, `get_local_rank` and `get_world_size` here too.
"""

from algorun_smdistributed.cuda_switch import cuda_on_cpu_where_asked

cuda_on_cpu_where_asked()

from .distributed import get_local_rank, get_rank, get_world_size  # noqa: E402

__all__ = ["get_local_rank", "get_rank", "get_world_size"]
