"""The entrypoint's loop and a bare DDP loop, rounds in turn, in bf16; rank 0 prints seconds per step and operations."""

import argparse
import json
import os
import tempfile
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from algorun_train.models.image_models import build, specify
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world
from bench.loops import CLASSES, Setting, add_sizes, bare, in_turn, ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_sizes(parser)
    parser.set_defaults(precision="bf16")
    args = parser.parse_args()
    with joined(read_world(os.environ)) as comm, tempfile.TemporaryDirectory() as folder:
        setting = Setting(args, comm, Path(folder))
        operations = _operations(setting)
        seconds = in_turn({"bare": bare(setting), "ours": ours(setting)}, args.rounds, comm)
    wall = {name: [turn[0] for turn in turns] for name, turns in seconds.items()}
    found = {"ranks": comm.size, "batch": setting.batching.global_batch, "operations": operations, **wall}
    comm.say("measured: " + json.dumps(found))


def _operations(setting: Setting) -> int:
    """Of one rank's step, forward and backward: two for each multiplication of a matrix product, as torch counts them.

    Counted on tensors that have shapes only, so that every device gives the same number.
    """
    config, images = setting.config, setting.ready[0][0]
    with torch.device("meta"):
        model = build(specify(config, CLASSES, setting.side), seed=0)
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(images.shape)).sum().backward()
    return int(counter.get_total_flops())


if __name__ == "__main__":
    main()
