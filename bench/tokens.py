"""Tokens per second of our sequences beside torch's DataLoader over Hugging Face's datasets, with the same text and tokenizer;
and the seconds until the text is tokenized and packed.

    python bench/tokens.py [--megabytes 20] [--context 1024] [--batch-size 8] [--workers 2] [--rounds 7] [--sample 4000]

All contenders take turns in every round, in an order that changes; a turn passes over --sample sequences in a new order.
Ours reads in the process that trains, from the memory-mapped token file. The peers are torch's DataLoader with --workers
processes that stay alive: over the same token file, and over a dataset that transformers' example run_clm.py would make
(bench/loader_peers.py). All give inputs and labels of --batch-size sequences. CPU time is shown beside because it hardly feels
foreign load.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from torch.utils.data import Dataset

from algorun_train.data import token_data
from algorun_train.data.sampler import Batching, Epochs
from algorun_train.data.token_data import Sequences, TokenData
from algorun_train.options.folders import find_folders
from algorun_train.options.job_options import DdpJobOptions
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.world import World
from bench import loader_peers
from bench.loaders import Turn, measure, torchs
from bench.quiet import paired_ratio

OURS, PEER, HUB = "algorun", "DataLoader, our token file", "DataLoader, datasets"


def make(folder: Path, megabytes: int) -> tuple[Path, Path]:
    """A tokenizer, and a channel of .jsonl files with documents of 20 to 2,000 words."""
    from tests.train.model_folders import LINES, write_language_model

    write_language_model(folder / "model")
    channel = folder / "train"
    channel.mkdir()
    draw, words = random.Random(0), " ".join(LINES).split()
    for number in range(4):
        with (channel / f"{number}.jsonl").open("w") as file:
            while file.tell() < megabytes * 2**20 // 4:
                text = " ".join(draw.choices(words, k=draw.randint(20, 2000)))
                file.write(json.dumps({"text": text}) + "\n")
    return folder / "model", channel


def tokenized(options: DdpJobOptions, scratch: Path) -> TokenData:
    """Ours. Token files of earlier runs are not there, so the first call tokenizes."""
    tempfile.tempdir = str(scratch)
    try:
        alone = Communicator(World(), torch.device("cpu"))
        return token_data.load(options, find_folders(options, {}, Path.is_dir), alone, Path(options.model or ""))
    finally:
        tempfile.tempdir = None


class Packed(Dataset):
    """Our sequences for torch's DataLoader."""

    def __init__(self, sequences: Sequences) -> None:
        self.sequences = sequences

    def __len__(self) -> int:
        return len(self.sequences.numbers)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, labels = self.sequences.read(np.array([index]))
        return inputs[0], labels[0]


def ours(data: TokenData, args: argparse.Namespace) -> Turn:
    """A turn is the begin of an epoch: its order is a new one, as the others'."""
    epochs, batching = itertools.count(), Batching(args.batch_size, 1, 0, 1)

    def turn(order: list[int]) -> int:
        epoch = next(epochs)
        steps = data.training(Epochs(epoch, 0, epoch + 1, 0), batching)
        return sum(len(batch.inputs) for _, (batch,) in itertools.islice(steps, len(order) // args.batch_size))

    return turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"megabytes": 20, "context": 1024, "batch-size": 8, "workers": 2, "rounds": 7, "sample": 4000}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        model, channel = make(Path(scratch), args.megabytes)
        cache = Path(scratch) / "cache"
        options = DdpJobOptions(model=str(model), train=channel, context=args.context)
        listed: dict[str, Any] = {}
        ways: dict[str, Callable[[], Any]] = {
            OURS: lambda: tokenized(options, Path(scratch)),
            f"{OURS}, again": lambda: tokenized(options, Path(scratch)),
            HUB: lambda: loader_peers.hub_tokens(channel, model, args.context, args.workers, cache),
            f"{HUB}, again": lambda: loader_peers.hub_tokens(channel, model, args.context, args.workers, cache),
        }
        print(f"{args.megabytes} MB of .jsonl, sequences of {args.context}, torch {torch.__version__}")
        for name, way in ways.items():
            begun = time.perf_counter()
            listed[name] = way()
            print(f"tokenized, {name}: {time.perf_counter() - begun:.2f} s", flush=True)
        data, hub = listed[OURS], listed[HUB]
        assert isinstance(data, TokenData)
        args.images = min(len(data.train.numbers), len(hub))  # what `measure` draws from
        args.sample = min(args.sample, args.images) // args.batch_size * args.batch_size
        turns = {
            OURS: ours(data, args),
            PEER: torchs(Packed(data.train), args, batch=args.batch_size),
            HUB: torchs(hub, args, loader_peers.token_batch, args.batch_size),
        }
        seconds, cpu, foreign = measure(turns, args)
    print(f"{args.workers} workers, {len(foreign)} rounds, other processes used {statistics.median(foreign):.2f} cores")
    tokens = args.sample * args.context
    for name, took in seconds.items():
        low, ratio, high = paired_ratio(seconds[HUB], took)
        print(
            f"{name:28} {tokens / statistics.median(took) / 1e6:7.1f} M tokens/s   {ratio:.3f} of {HUB} ({low:.3f} to "
            f"{high:.3f})   {1e9 * statistics.median(cpu[name]) / tokens:.0f} ns of CPU per token"
        )


if __name__ == "__main__":
    main()
