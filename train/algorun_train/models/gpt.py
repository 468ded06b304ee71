"""A GPT (Radford et al. 2019, "GPT-2"): pre-norm blocks with causal attention, learned positions, a linear head."""

from dataclasses import asdict, dataclass

import torch
from torch import nn

from algorun_train.common.errors import UserError

from .transformer import Block

BYTES = 256  # the vocabulary: one token for each value of a byte
HIDDEN = 4  # width of the MLP as a multiple of the model's
STD = 0.02  # standard deviation of the initial weights, as in GPT-2


@dataclass(frozen=True, slots=True, kw_only=True)
class GptSpec:
    """Everything that decides the shapes of a GPT's weights. Raises UserError if sizes do not fit each other."""

    vocabulary: int = BYTES
    context: int = 128  # the largest number of tokens in a sequence
    width: int = 128
    depth: int = 4
    heads: int = 4
    dropout: float = 0.0
    tied: bool = False  # whether the head has the weights of the embedding, as in GPT-2

    def __post_init__(self) -> None:
        for name in ("vocabulary", "context", "width", "depth", "heads"):
            if getattr(self, name) < 1:
                raise UserError(f"option --{name}: {getattr(self, name)}; allowed: at least 1; fix: give a larger one")
        if self.width % self.heads:
            fits = ", ".join(str(n) for n in range(1, self.width + 1) if self.width % n == 0)
            raise UserError(
                f"option --heads: {self.heads} does not divide the width {self.width}; allowed: {fits}; fix: use one"
            )
        if not 0 <= self.dropout < 1:
            raise UserError(f"option --dropout: {self.dropout:g}; allowed: at least 0 and below 1; fix: give one")

    def as_dict(self) -> dict[str, str | int | float]:
        return {"model": "gpt"} | asdict(self)


def build(spec: GptSpec, seed: int) -> "GPT":
    """A GPT with weights drawn from `seed`: tokens [B, T] int64 in, logits [B, T, vocabulary] out."""
    torch.manual_seed(seed)
    return GPT(spec)


class Embedding(nn.Module):
    """Tokens [B, T] to [B, T, W]: one learned vector for each token, and one for each position."""

    def __init__(self, vocabulary: int, context: int, width: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.empty(context, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        vectors: torch.Tensor = self.drop(self.tokens(tokens) + self.position[: tokens.shape[1]])
        return vectors


class GPT(nn.Module):
    """Embedding, blocks, norm, head: tokens [B, T] to logits [B, T, vocabulary]."""

    def __init__(self, spec: GptSpec) -> None:
        super().__init__()
        self.embed = Embedding(spec.vocabulary, spec.context, spec.width, spec.dropout)
        self.blocks = nn.Sequential(
            *(Block(spec.width, spec.heads, HIDDEN, spec.dropout, causal=True) for _ in range(spec.depth))
        )
        self.norm = nn.LayerNorm(spec.width)
        self.head = nn.Linear(spec.width, spec.vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if name.endswith(("attention.out.weight", "mlp.2.weight")):  # the 2 x depth layers whose outputs add up
                nn.init.normal_(parameter, std=STD * (2 * spec.depth) ** -0.5)
            elif parameter.dim() > 1:
                nn.init.normal_(parameter, std=STD)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        if spec.tied:
            self.head.weight = self.embed.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(self.blocks(self.embed(tokens))))
        return logits
