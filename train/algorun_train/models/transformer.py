"""Attention and the pre-norm block (Xiong et al. 2020), which the vision transformer and the GPT share."""

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Multi-head self-attention over tokens [B, N, W]. With `causal` a token sees only itself and the tokens before it."""

    def __init__(self, width: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        count, length, width = tokens.shape
        parts = self.qkv(tokens).view(count, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=self.causal)
        projected: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(count, length, width))
        return projected


class Block(nn.Module):
    """Attention, then an MLP of `hidden` times the width; each adds its output to its input, [B, N, W]."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float, causal: bool = False) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout, causal)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden * width), nn.GELU(), nn.Linear(hidden * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens + self.drop(self.attention(self.norm1(tokens)))
        mixed: torch.Tensor = self.drop(self.mlp(self.norm2(tokens)))
        return tokens + mixed
