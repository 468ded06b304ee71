"""Prints the operations of one training step of a GPT over one sequence, and its weights. Nothing is computed: the
tensors have shapes only (torch's device "meta")."""

import argparse
import json

import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from algorun_train.models import gpt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("width", "depth", "heads", "context"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    with torch.device("meta"):
        model = gpt.build(gpt.GptSpec(dropout=0.0, tied=False, **vars(args)), seed=0)
        tokens = torch.zeros(1, args.context, dtype=torch.int64)
        with FlopCounterMode(display=False) as counter:
            scores = model(tokens)
            functional.cross_entropy(scores.flatten(0, 1).float(), tokens.flatten()).backward()
    weights = sum(p.numel() for p in model.parameters())
    print("counted: " + json.dumps({"operations": counter.get_total_flops(), "weights": weights}))


if __name__ == "__main__":
    main()
