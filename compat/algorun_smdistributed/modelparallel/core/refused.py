"""What the library's documentation names and this package does not have: one sentence each, said where it is used."""

from __future__ import annotations

from typing import NoReturn

from algorun_smdistributed.script_types import Given
from algorun_train.common.errors import UserError

TENSOR = "tensor parallelism is not built here"
FULL = "use pipeline stages (pipeline_parallel_degree) and torch.nn's modules"

NN = {
    "DistributedModule": f"{TENSOR}; {FULL}",
    "DistributedLinear": f"{TENSOR}; use torch.nn.Linear, which it equals on one rank",
    "DistributedEmbedding": f"{TENSOR}; use torch.nn.Embedding, which it equals on one rank",
    "DistributedTransformer": f"{TENSOR}; {FULL}, such as torch.nn.TransformerEncoder",
    "DistributedTransformerLayer": f"{TENSOR}; {FULL}, such as torch.nn.TransformerEncoderLayer",
    "DistributedTransformerLMHead": f"{TENSOR}; {FULL}, or a language model of a library such as transformers",
    "DistributedTransformerOutputLayer": f"{TENSOR}; {FULL}: two torch.nn.Linear and a residual connection",
    "DistributedAttentionLayer": f"{TENSOR}; {FULL}, such as torch.nn.MultiheadAttention",
    "FlashAttentionLayer": "its kernels are part of the closed library; use "
    "torch.nn.functional.scaled_dot_product_attention, which has flash attention",
}
OPTIMIZERS = {
    "FusedNovoGrad": "it is apex's, which is no part of the image; use torch.optim.AdamW(.., fused=True)",
}
OTHERS = {
    "CheckpointManager": "it belongs to TensorFlow; use smp.save_checkpoint",
    "StepOutput.merge": "it belongs to TensorFlow; use concat()",
    "StepOutput.accumulate": "it belongs to TensorFlow; use reduce_mean()",
    "FP16_Module": 'training in fp16 with a master copy is not built here; use "bf16": true in the parameters',
    "FP16_Optimizer": 'training in fp16 with a master copy is not built here; use "bf16": true in the parameters',
}
SENTENCES = (
    OTHERS
    | {f"nn.{name}": text for name, text in NN.items()}
    | {f"optimizers.{name}": text for name, text in OPTIMIZERS.items()}
)


def error(name: str) -> Exception:
    """The UserError of a name in the table, such as "nn.DistributedLinear"."""
    why, _, instead = SENTENCES[name].partition("; ")
    return UserError(f"smdistributed: smp.{name} cannot be had: {why}; fix: {instead}")


def refuse(name: str, owner: str = "") -> NoReturn:
    """For `__getattr__` of modules and classes: UserError for a name in the table, AttributeError for any other."""
    full = f"{owner}.{name}" if owner else name
    if full in SENTENCES:
        raise error(full)
    raise AttributeError(f"smdistributed.modelparallel.torch has no {full!r}")


def stand_in(name: str, base: type) -> type:
    """A class that can be named, subclassed and registered, which does nothing with one rank, but not made."""

    def new(cls: type, *args: Given, **kwargs: Given) -> NoReturn:
        raise error(name)

    text = f"Refused: {SENTENCES[name]}."
    module, _, own = name.rpartition(".")
    names = {"__new__": new, "__doc__": text, "__module__": f"smdistributed.modelparallel.torch.{module}"}
    return type(base)(own, (base,), names)
