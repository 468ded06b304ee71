"""smdistributed.dataparallel.torch.parallel.distributed: DistributedDataParallel is torch's own, in their signature."""

from __future__ import annotations

import torch
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from algorun_smdistributed.dataparallel.torch.distributed import init_process_group
from algorun_smdistributed.script_types import Given
from algorun_train.common.errors import UserError


class DistributedDataParallel(TorchDistributedDataParallel):
    """torch's DistributedDataParallel. Its other arguments, such as `find_unused_parameters`, are taken by name.

    Starts the process group where the script has not. UserError for `gradient_accumulation_steps`, which the library
    itself has dropped.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: list[Given] | None = None,
        output_device: Given = None,
        broadcast_buffers: bool = True,
        process_group: ProcessGroup | None = None,
        bucket_cap_mb: int | None = None,
        **kwargs: Given,
    ) -> None:
        if "gradient_accumulation_steps" in kwargs:
            raise UserError(
                "DistributedDataParallel: gradient_accumulation_steps is not offered, as in the library since 1.4; "
                "fix: call forward and backward inside `with model.no_sync():` for all but the last batch"
            )
        if not broadcast_buffers:  # torch warns of an argument that newer versions call otherwise, whatever it says
            kwargs["broadcast_buffers"] = False
        init_process_group()
        super().__init__(
            module,
            device_ids=device_ids,
            output_device=output_device,
            process_group=process_group,
            bucket_cap_mb=bucket_cap_mb,
            **kwargs,
        )
