"""Steps of sharded data parallel training: a rank holds a share of the model, and gathers each layer while it computes."""

import contextlib
from collections.abc import Callable, Iterator
from typing import cast

from torch import nn
from torch.distributed.fsdp import FSDPModule

from .data_parallel_steps import DataParallelSteps


class ShardedSteps(DataParallelSteps):
    """As DataParallelSteps, for a model that `parallel.shard.sharded_model.shard` has sharded over the ranks.

    FSDP2 averages gradients over all ranks, so the scale of the losses is the same as with DDP: the gradient is the exact
    mean over all counted samples. Clipping computes one norm over all shares.
    """

    def _wrap(self, model: nn.Module) -> tuple[nn.Module, Callable[[], contextlib.AbstractContextManager[object]]]:
        sharded = cast(FSDPModule, model)

        @contextlib.contextmanager
        def no_sync() -> Iterator[None]:
            sharded.set_requires_gradient_sync(False)
            try:
                yield
            finally:
                sharded.set_requires_gradient_sync(True)

        return model, no_sync

    def _precision(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()  # the units compute in bfloat16 themselves (MixedPrecisionPolicy)
