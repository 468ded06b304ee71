"""Which weights of a folder's model a result depends on. The others stay frozen: DDP waits for the gradient of each weight that
trains."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .folder_classes import skeleton
from .folder_config import ModelFolder


def used_on_meta(folder: ModelFolder, classes: Sequence[str] | None) -> set[str] | None:
    """The names of these weights, found without memory on torch's meta device; None if the model computes only with values.

    A language model sees `folder.example` tokens: some families leave weights alone in short sequences, such as DeepSeek-V4's
    compressed attention in fewer than 128 tokens.
    """
    for dtype, inputs in _examples(folder):
        with torch.device("meta"):
            model = skeleton(folder, classes).eval().to(dtype)
            try:
                model(**inputs()).logits.sum().backward()
            except (
                Exception
            ):  # each model has its own way to fail without values: another example, then the CPU decides
                continue
        return {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    return None


def _examples(
    folder: ModelFolder,
) -> Iterator[tuple[torch.dtype, Any]]:  # Any: a function that returns keyword arguments
    """Types and inputs to try. Made inside the device's context, where the model's are."""
    if folder.images:
        side = folder.images.side
        yield torch.float32, lambda: {"pixel_values": torch.zeros(1, 3, side, side)}
        return
    length = folder.example
    tokens = {"use_cache": False}
    # Experts compute in bfloat16 only on this device. Without a mask of four dimensions most models look at its values, and
    # some take none.
    for dtype in (torch.bfloat16, torch.float32):
        yield (
            dtype,
            lambda dtype=dtype: (
                tokens
                | {
                    "input_ids": torch.zeros(1, length, dtype=torch.int64),
                    "attention_mask": torch.zeros(1, 1, length, length, dtype=dtype),
                }
            ),
        )
    yield torch.bfloat16, lambda: tokens | {"input_ids": torch.zeros(1, length, dtype=torch.int64)}


def used_by(model: Any, example: torch.Tensor) -> set[str]:
    """The same of a model with values, from one pass over `example`; its gradients are gone afterwards."""
    model.eval()
    model(example).sum().backward()
    used = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    for parameter in model.parameters():
        parameter.grad = None
    return used
