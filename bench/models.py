"""`ddp --model FOLDER` beside transformers.Trainer and bare loops, whole on each rank, sharded, and in a tensor group: losses and
steps per second.

    python bench/models.py [--rounds 7] [--steps 50] [--ranks 2] [--width 128] [--layers 4] [--context 128] [--batch-size 4]
                           [--forms whole sharded tensor]     # all three by default

A small Llama with random weights, its tokenizer and a text are made on the spot. In every round each contender runs a job of
its own from the same weights, in an order that changes (bench/model_loops.py says what they do). A step's time is one whole turn
of its loop; 10 steps before them do not count. CPU time is shown beside because it hardly feels foreign load.
Tokens per second are those of all ranks: a tensor group computes one batch, ranks that are whole or sharded one each. Losses are
those of the last round, compared with the bare loop's, the whole one if it runs.
"""

import argparse
import json
import math
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.processes import start
from bench.quiet import paired_ratio

NAMES = ("algorun ddp", "transformers.Trainer", "bare loop", "parallelize_module")
FORMS = ("whole", "sharded", "tensor")
LACKS = {
    ("transformers.Trainer", "tensor"),  # with tensor parallelism it runs on GPUs only
    ("parallelize_module", "whole"),  # the rest is `bare loop`
    ("parallelize_module", "sharded"),
}


def make_folder(folder: Path, args: argparse.Namespace) -> None:
    """A Llama with random weights, and a channel of text for more steps than are run."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.train.model_folders import LINES, write_language_model

    write_language_model(folder / "model")
    torch.manual_seed(0)
    heads = max(args.width // 32, 1)
    config = LlamaConfig(
        hidden_size=args.width,
        intermediate_size=args.width * 8 // 3 // 32 * 32,
        num_hidden_layers=args.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        vocab_size=300,
        max_position_embeddings=args.context,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    (folder / "train").mkdir()
    draw, words = random.Random(0), " ".join(LINES).split()
    tokens = (args.steps + 12) * args.ranks * args.batch_size * args.context * 5 // 4  # a tenth is held out
    (folder / "train" / "text.txt").write_text(" ".join(draw.choice(words) for _ in range(tokens)))


def rank(args: argparse.Namespace) -> None:
    """One process of one turn."""
    import torch

    from algorun_train.options.job_options import DdpJobOptions
    from bench.model_loops import LOOPS, Notes, Turn

    torch.set_num_threads(1)
    folder, name, form = Path(args.folder), args.contender, args.form
    own = Path(args.result).parent
    options = DdpJobOptions(
        model=str(folder / "model"), train=folder / "train", context=args.context, batch_size=args.batch_size,
        epochs=1, lr=1e-3, warmup_epochs=0, gamma=1, resume="never", shard="all" if form == "sharded" else "1",
        tp=args.ranks if form == "tensor" else 1, checkpoint_dir=own / "checkpoints", model_dir=own / "model", output_dir=own / "output",
        checkpoint_interval_s=0,
    )  # fmt: skip
    notes = Notes()
    LOOPS[name](Turn(options, args.steps, form == "sharded", form == "tensor"), notes)
    wall, cpu = notes.per_step(args.steps)
    losses = torch.stack(notes.losses[: args.steps]).tolist()
    Path(f"{args.result}.{os.environ['RANK']}").write_text(json.dumps({"wall": wall, "cpu": cpu, "losses": losses}))


def turn(name: str, form: str, args: argparse.Namespace, folder: Path) -> dict:
    """Starts the ranks of one turn: seconds and CPU seconds of a step, and the losses of all ranks together."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        result = Path(own) / "result"
        argv = [*sys.argv[1:], "--contender", name, "--form", form, "--folder", str(folder), "--result", str(result)]
        environ = {"HF_HUB_OFFLINE": "1", "SAGEMAKER_BASE_DIR": own, "TOKENIZERS_PARALLELISM": "false"}
        with (Path(own) / "log").open("w+") as log:
            try:
                start(__file__, args.ranks, argv, output=log, **environ)
            except SystemExit:
                log.seek(0)
                sys.exit(f"error: {name}, {form}:\n{log.read()[-3000:]}")
        found = [json.loads(Path(f"{result}.{number}").read_text()) for number in range(args.ranks)]
    losses = [math.fsum(each) for each in zip(*(one["losses"] for one in found), strict=True)]
    cpu = math.fsum(one["cpu"] for one in found)
    return {"wall": max(one["wall"] for one in found), "cpu": cpu, "losses": losses}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"rounds": 7, "steps": 50, "ranks": 2, "width": 128, "layers": 4, "context": 128, "batch-size": 4}
    for option, default in sizes.items():
        parser.add_argument(f"--{option}", type=int, default=default)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    parser.add_argument("--json", type=Path)
    for hidden in ("contender", "form", "folder", "result"):
        parser.add_argument(f"--{hidden}", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.steps += 10  # to warm up
    if args.steps < 12:
        parser.error(f"--steps: {args.steps - 10}; allowed: 2 or more")
    if args.result:
        rank(args)
        return
    shuffle, found = (
        random.Random(0),
        {(name, form): [] for name in NAMES for form in args.forms if (name, form) not in LACKS},
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_folder(folder, args)
        for number in range(args.rounds):
            for key in shuffle.sample(list(found), len(found)):
                found[key].append(turn(*key, args, folder))
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
    if args.json:
        args.json.write_text(json.dumps({f"{name}, {form}": turns for (name, form), turns in found.items()}) + "\n")
    table(args, found)


def table(args: argparse.Namespace, found: dict[tuple[str, str], list[dict]]) -> None:
    import torch
    import transformers

    print(
        f"torch {torch.__version__}, transformers {transformers.__version__}, {args.ranks} gloo processes, {args.rounds} rounds"
    )
    print("ratios: steps per second of ours over the contender's, in each round; the same by CPU seconds\n")
    print(
        "| loop | form | ms per step | tokens/s | ours over it (95 %) | by CPU | greatest difference of a loss | last loss |"
    )
    print("|---|---|---|---|---|---|---|---|")
    reference = found["bare loop", next(form for form in FORMS if ("bare loop", form) in found)][-1]["losses"]
    for (name, form), turns in sorted(found.items(), key=lambda item: FORMS.index(item[0][1])):
        mine = found[NAMES[0], form]
        low, ratio, high = paired_ratio([one["wall"] for one in turns], [one["wall"] for one in mine])
        _, by_cpu, _ = paired_ratio([one["cpu"] for one in turns], [one["cpu"] for one in mine])
        losses = turns[-1]["losses"]
        off = max(abs(one - other) / other for one, other in zip(losses, reference, strict=True))
        wall = statistics.median(one["wall"] for one in turns)
        tokens = args.batch_size * args.context * (1 if form == "tensor" else args.ranks) / wall
        ratios = "" if name == NAMES[0] else f"{ratio:.3f} ({low:.3f} - {high:.3f}) | {by_cpu:.3f}"
        print(
            f"| {name} | {form} | {wall * 1e3:.1f} | {tokens:.0f} | {ratios or ' | '} | {off:.1e} | {losses[-1]:.4f} |"
        )


if __name__ == "__main__":
    main()
