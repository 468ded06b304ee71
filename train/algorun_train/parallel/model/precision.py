"""Precisions by name, and the type that autocast computes in under each of them."""

from __future__ import annotations

import torch

AUTOCAST: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""None: no autocast, everything is computed in the weights' own type"""
