"""Models of transformers where AWS's library puts its own transformer: the names of that one, and drawn weights.

With tensor parallelism switched on, also at degree 1, AWS's library replaces GPT-2, GPT-J, GPT-Neo and GPT-NeoX by its
DistributedTransformer when the model is wrapped. Scripts then find its layers at `transformer.seq_layers`, and their halves
at `attention` and `output`. Here the model keeps its own modules, which compute the same, and has these names beside its own.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import sys
from collections.abc import Iterator

import torch
from torch import nn

from algorun_smdistributed.script_types import Given
from algorun_train.ranks import generators

CPU = torch.device("cpu")

# By the name of transformers' class: the library's name for an attribute, and transformers' own.
NAMES = {
    "GPT2Model": {"seq_layers": "h"},
    "GPT2Block": {"attention": "attn", "output": "mlp"},
    "GPTJModel": {"seq_layers": "h"},
    "GPTJBlock": {"attention": "attn", "output": "mlp"},
    "GPTNeoModel": {"seq_layers": "h"},
    "GPTNeoBlock": {"attention": "attn", "output": "mlp"},
    "GPTNeoXForCausalLM": {"transformer": "gpt_neox"},
    "GPTNeoXModel": {"seq_layers": "layers"},
    "GPTNeoXLayer": {"output": "mlp"},
}


def give(model: nn.Module) -> None:
    """Gives the modules of `model` the library's names: properties of their classes, so no weight has two names."""
    for module in model.modules():
        kind = type(module)
        for name, own in NAMES.get(kind.__name__, {}).items():
            if not hasattr(module, name) and hasattr(module, own):
                setattr(kind, name, property(operator.attrgetter(own), doc=f"The module's {own}."))


@contextlib.contextmanager
def initialised() -> Iterator[None]:
    """Models of transformers that are made inside draw their weights, if the script has switched that off.

    AWS's example scripts replace PreTrainedModel.init_weights by nothing, because the library's own layers draw their
    weights. Meanwhile it draws and ties what the model's configuration asks for. Random numbers of the script stay as they
    are; weights that are loaded later replace these.
    """
    library = sys.modules.get("transformers.modeling_utils")  # the script had to import it to switch anything off
    base = library.PreTrainedModel if library else None
    if base is None or base.init_weights.__module__.startswith("transformers."):
        yield
        return
    switched_off, numbers = base.init_weights, itertools.count(1)

    def draw(model: Given) -> None:
        seed = hash((torch.initial_seed(), next(numbers))) & 0x7FFF_FFFF_FFFF_FFFF
        device = next((each.device for each in model.parameters() if each.device.type == "cuda"), CPU)
        with generators.kept(device):
            for generator in generators.generators(device):  # torch.manual_seed would seed those of all GPUs
                generator.manual_seed(seed)
            model.apply(model._init_weights)
        model.tie_weights()

    base.init_weights = draw
    try:
        yield
    finally:
        base.init_weights = switched_off
