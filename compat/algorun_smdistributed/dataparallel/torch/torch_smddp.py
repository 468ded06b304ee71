"""Registers the torch.distributed backend `smddp`: NCCL where there are GPUs, Gloo elsewhere.

AWS's documentation has scripts import this module and call `init_process_group(backend="smddp")`. The name stays, the
collectives are torch's own.
"""

from algorun_smdistributed.ranks import backend

NAME = "smddp"

backend.register(NAME)
