"""smp.nn.FusedLayerNorm."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


class FusedLayerNorm(nn.LayerNorm):
    """torch's LayerNorm, one kernel on GPUs as well, with the arguments of the library's, which is apex's."""

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True
    ) -> None:
        shape = normalized_shape if isinstance(normalized_shape, int) else list(normalized_shape)
        super().__init__(shape, eps, elementwise_affine)
