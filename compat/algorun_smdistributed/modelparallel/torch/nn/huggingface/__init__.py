"""smp.nn.huggingface: translations between the state dicts of Hugging Face's models and of the library's own modules.

Source: "Support for Hugging Face Transformer Models" in AWS's developer guide. Here a model keeps its own modules, as it
does there without tensor parallelism, so both sides are the same state dict.
"""

from . import bert, gpt2, gptj, gptneo, roberta

__all__ = ["bert", "gpt2", "gptj", "gptneo", "roberta"]
