"""Models that the cut is tried on: small ones of our own, and the usual libraries' where those are installed."""

import contextlib
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

# Where `make` puts the libraries that need torchvision. A torchvision that does not fit this torch, as PyPI's does not
# fit a CPU build, would otherwise break transformers and Lightning too: they import it wherever they find it.
APART = Path(sys.prefix) / "vision"
NEED_TORCHVISION = ("torchvision", "timm", "vit_pytorch")


def declare_torchvision() -> None:
    """Lets torchvision be imported beside a torch that it does not fit, such as PyPI's beside a CPU build.

    Its compiled part does not load there, and then its import fails on two operators that no model of it uses. Declared,
    they are found. A compiled part that does load declares them itself, and ends the process if they are there already.
    """
    global _operators
    with contextlib.suppress(OSError):
        for compiled in (APART / "torchvision").glob("_C*.so"):
            torch.ops.load_library(compiled)
    if not hasattr(torch.ops.torchvision, "nms"):
        _operators = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _operators.define(f"{name}(Tensor boxes, Tensor scores, float overlap) -> Tensor")


def library(name: str):
    """A library of models, or the test is skipped: `make` installs them all (pyproject.toml, tests/train/vision.txt)."""
    reason = f"{name} is not installed"
    if name.partition(".")[0] not in NEED_TORCHVISION:
        return pytest.importorskip(name, reason=reason)
    declare_torchvision()
    sys.path.append(str(APART))  # for this import only: processes that this one starts get its module path
    try:
        return pytest.importorskip(name, reason=reason)
    finally:
        sys.path.remove(str(APART))


class Digits(nn.Module):
    """Two convolutions and two linear layers, with functions between them: the classic for 28 x 28 digits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(64 * 12 * 12, 128), nn.Linear(128, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = functional.relu(self.conv2(functional.relu(self.conv1(images))))
        flat = torch.flatten(self.dropout1(functional.max_pool2d(maps, 2)), 1)
        return functional.log_softmax(self.fc2(self.dropout2(functional.relu(self.fc1(flat)))), dim=1)


class Block(nn.Module):
    """norm, two linear layers, a residual sum; an optional mask, scale and number of the call as arguments."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.act = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU()
        self.drop, self.down = nn.Dropout(0.1), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        inner = self.down(self.drop(self.act(self.up(self.norm(x)))))
        return x + (inner if mask is None else inner * mask)


class Glued(nn.Module):
    """Parameters of the root's own forward: a class token and positions before the blocks, a scale after them."""

    def __init__(self, width: int = 16, depth: int = 4) -> None:
        super().__init__()
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, width)), nn.Parameter(torch.randn(1, 9, width))
        self.scale, self.unused = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(3))
        self.embed, self.head = nn.Linear(6, width), nn.Linear(width, 5)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=1) * self.scale)


def digits():
    return Digits(), torch.randn(2, 1, 28, 28)


def linformer():
    transformer = library("linformer").Linformer(dim=128, seq_len=50, depth=12, heads=8, k=64)
    vit = library("vit_pytorch.efficient").ViT
    return vit(dim=128, image_size=224, patch_size=32, num_classes=2, transformer=transformer), torch.randn(
        1, 3, 224, 224
    )


def torchvision_vit():
    vit = library("torchvision.models").VisionTransformer
    return vit(32, 8, 4, 4, 32, 64, num_classes=10, dropout=0.1), torch.randn(2, 3, 32, 32)


def timm_vit():
    vit = library("timm.models.vision_transformer").VisionTransformer
    return vit(32, 8, embed_dim=32, depth=6, num_heads=4, num_classes=10), torch.randn(2, 3, 32, 32)


def resnet18():
    return library("torchvision.models").resnet18(num_classes=10), torch.randn(2, 3, 64, 64)


def gpt2(tied: bool = False, attention: str = "sdpa"):
    transformers = library("transformers")
    config = transformers.GPT2Config(
        vocab_size=60, n_positions=32, n_embd=32, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=0,
        attn_implementation=attention,
    )  # fmt: skip
    config.tie_word_embeddings = tied
    return transformers.GPT2LMHeadModel(config), {"input_ids": torch.randint(0, 60, (2, 16)), "use_cache": False}


def llama(tied: bool = False, attention: str = "sdpa"):
    transformers = library("transformers")
    config = transformers.LlamaConfig(
        vocab_size=60, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=tied, attn_implementation=attention,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), {"input_ids": torch.randint(0, 60, (2, 16)), "use_cache": False}


def bert(kind: str = "ForSequenceClassification", attention: str = "sdpa"):
    transformers = library("transformers")
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32, tie_word_embeddings=False, attn_implementation=attention,
    )  # fmt: skip
    return getattr(transformers, f"Bert{kind}")(config), {"input_ids": torch.randint(0, 60, (2, 16))}


def padded(rows: int, length: int, lengths: list[int]) -> torch.Tensor:
    """An attention mask [rows, length] of sequences that are so long, the other ones `length`."""
    own = torch.tensor([*lengths, *[length] * (rows - len(lengths))])
    return (torch.arange(length) < own[:, None]).long()
