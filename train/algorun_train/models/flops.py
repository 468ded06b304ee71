"""How many operations a model takes for a token, for MFU."""

from __future__ import annotations

from torch import nn


def flops_per_token(model: nn.Module) -> float:
    """Operations forward and backward for one token of a language model: 6 for each trained weight, 4 for each frozen one,
    after appendix B of "PaLM" (arXiv 2204.02311). Attention's own products are left out, and so are weights that are
    only looked up: embeddings that no layer shares.
    """
    layers = {id(each) for module in model.modules() for each in _own(module) if not isinstance(module, nn.Embedding)}
    looked_up = {
        id(each) for module in model.modules() if isinstance(module, nn.Embedding) for each in _own(module)
    } - layers
    counted = [each for each in model.parameters() if id(each) not in looked_up]
    return float(sum(each.numel() * (6 if each.requires_grad else 4) for each in counted))


def _own(module: nn.Module) -> list[nn.Parameter]:
    return list(module.parameters(recurse=False))
