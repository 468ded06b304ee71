"""What smdistributed.modelparallel costs beside the pipeline that it runs on: the same model, cuts, batches and schedule.

Two ranks, 1F1B, `--microbatches` microbatches. A step of the script hands its batch to the last stage, runs the step
function there, and brings its results back to all ranks; the pipeline's own step has the batch on every rank. Both take
turns in one run; rounds in which others used the machine do not count. Prints a Markdown table.
"""

import argparse
import copy
import json
import os
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402

import smdistributed.modelparallel.torch as smp  # noqa: E402
from algorun.pipeline import pipeline  # noqa: E402
from algorun_train.ranks.communicator import Communicator  # noqa: E402
from algorun_train.ranks.world import read_world  # noqa: E402
from bench.quiet import quiet_rounds  # noqa: E402
from bench.stages import MICROBATCH, RANKS, as_rank, loss, models, on_ranks, options, spread, targets_of  # noqa: E402


@smp.step
def train_step(model, inputs, targets):
    output = model(inputs)
    value = loss(output, targets)
    model.backward(value)
    return value


def rank(args: argparse.Namespace) -> None:
    as_rank()
    smp.init({"partitions": RANKS, "microbatches": args.microbatches, "optimize": "speed"})
    make, inputs_of = models(args)[args.model]
    torch.manual_seed(0)
    whole = make()
    inputs = inputs_of(MICROBATCH * args.microbatches)
    targets = targets_of(whole, inputs)
    model = smp.DistributedModel(copy.deepcopy(whole))
    model.train()
    empty = torch.zeros_like(inputs), torch.zeros_like(targets)  # arguments count on pp_rank 0 alone

    def scripts() -> None:
        train_step(model, *((inputs, targets) if smp.pp_rank() == 0 else empty)).reduce_mean().item()
        for parameter in model.local_parameters():
            parameter.grad = None

    scripts()  # which cuts the model and writes the partition
    partition = Path(os.environ["SAGEMAKER_BASE_DIR"], "output", "data", "partition.json")
    pipe = pipeline(
        whole, inputs[:MICROBATCH], loss, microbatches=args.microbatches, pp=RANKS, partition=partition,
        optimize="speed", schedule="1f1b",
    )  # fmt: skip
    pipe.train()

    def own() -> None:
        pipe.everywhere(pipe.step(inputs, targets)).item()
        for parameter in pipe.parameters():
            parameter.grad = None

    comm = Communicator(read_world(os.environ), torch.device("cpu"))
    seconds, dropped = quiet_rounds(comm, {"pipeline": own, "smp": scripts}, args.rounds, args.steps, args.foreign)
    if comm.is_leader:
        Path(args.result).write_text(json.dumps({"model": args.model, "seconds": seconds, "dropped": dropped}))
    smp.barrier()


def main() -> None:
    args = options(__doc__).parse_args()
    if args.result:
        rank(args)
        return
    rows = [on_ranks(__file__, "--model", name) for name in models(args)]  # one model per job, as in a script
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"torch {torch.__version__}, {RANKS} ranks, {args.microbatches} microbatches of {MICROBATCH}, "
          f"{args.rounds} rounds of {args.steps} steps\n")  # fmt: skip
    print("| model | pipeline, ms per step (quartiles) | under smp | ratio of medians |\n|---|---|---|---|")
    for row in rows:
        middle = {key: statistics.median(values) for key, values in row["seconds"].items()}
        cells = [f"{middle[key] * 1e3:.0f} ({spread(values)})" for key, values in row["seconds"].items()]
        print(f"| {row['model']} | {' | '.join(cells)} | {middle['smp'] / middle['pipeline']:.3f} |")


if __name__ == "__main__":
    main()
