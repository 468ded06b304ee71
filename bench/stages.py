"""What the benchmarks of pipeline stages share: models, loss, options, and how their ranks are started."""

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from algorun_train.models import gpt
from algorun_train.models.image_spec import ModelSpec
from algorun_train.models.vit import ViT
from bench.quiet import FOREIGN, quartiles
from bench.ranks import start

RANKS, MICROBATCH = 2, 4


def gpt_of(vocabulary: int, width: int) -> nn.Module:
    return gpt.build(gpt.GptSpec(vocabulary=vocabulary, context=128, width=width, depth=8, heads=4), seed=0)


def vit_of(width: int) -> nn.Module:
    spec = ModelSpec("vit", classes=100, image_size=64, patch_size=8, width=width, depth=8, heads=4, dropout=0.0)
    return ViT(spec)


def tokens(count: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, 128))


def models(args: argparse.Namespace) -> dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]]:
    """The chosen models: how to make each of them, and its inputs. Exits where none is chosen."""
    width = args.width
    every = {
        "gpt, 256 tokens": (lambda: gpt_of(256, width or 192), tokens),
        "gpt, 8,192 tokens": (lambda: gpt_of(8192, width or 128), tokens),
        "vit, 64 x 64": (lambda: vit_of(width or 192), lambda count: torch.randn(count, 3, 64, 64)),
    }
    chosen = {name: made for name, made in every.items() if name.startswith(args.only)}
    if not chosen:
        sys.exit(f"--only {args.only!r}: no model's name begins so; there are: {'; '.join(every)}")
    return chosen


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, -2), target.flatten())


def options(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument(
        "--foreign", type=float, default=FOREIGN, help="cores that others may use in a round that counts"
    )
    parser.add_argument("--width", type=int, help="of all models in place of their own: a multiple of 4, to try it out")
    parser.add_argument("--only", default="", help="models whose names begin so, such as vit")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    parser.add_argument("--result", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    return parser


def targets_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """Random classes, as many as the model has, one for each of its rows of scores."""
    with torch.no_grad():
        shape = model(inputs[:1]).shape
    return torch.randint(0, shape[-1], (len(inputs), *shape[1:-1]))


def on_ranks(program: str, *more: str) -> Any:
    """Runs the program again as RANKS ranks with the same options, and returns what rank 0 writes to --result."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        start(program, RANKS, [*sys.argv[1:], *more, "--result", str(file)], SAGEMAKER_BASE_DIR=folder)
        return json.loads(file.read_text())


def as_rank() -> None:
    """One thread for each rank, and no warnings between the figures."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)


def spread(values: list[float]) -> str:
    """Quartiles in ms."""
    low, _, high = (value * 1e3 for value in quartiles(values))
    return f"{low:.0f} - {high:.0f}"
