"""`algorun plan --fit`: which hosts a model fits on, and the cheapest of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from algorun.common import distributions
from algorun.common.errors import UserError
from algorun.common.sizes import size_text
from algorun.job.values import count as whole
from algorun_client.common import command_line, instance_units, json_lines, table
from algorun_client.common.codes import ClientCode
from algorun_client.fit import placement, rank_memory
from algorun_client.fit.placement import Asked, Offer
from algorun_client.fit.rank_memory import Model
from algorun_client.submit.read import task_place
from algorun_client.submit.read.common_options import add_place_options, add_where_options
from algorun_report.page.words import money

COMMAND, JOB, IN_STAGES = "algorun plan --fit", "ddp", "pipeline"
MOST_HOSTS = 8
PIPELINE_BATCH = 32  # samples; the job's own default
HEADS = (
    "instance",
    "hosts",
    "layout",
    "weights",
    "moments",
    "gradients",
    "gathered",
    "activations",
    "a rank",
    "of a GPU",
    "an hour",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command. Others, such as --optimizer, are those of the job."""
    parser.add_argument("--fit", action="store_true", required=True, help="this command")
    parser.add_argument("--model", metavar="DIR", required=True, help="a Hugging Face folder; its weights are not read")
    parser.add_argument(
        "--instance", metavar="TYPE,..", default="", help="instance types (default: those of the job file's `price`)"
    )
    parser.add_argument("--hosts", metavar="N", default=str(MOST_HOSTS), help="at most N hosts (default: %(default)s)")
    parser.add_argument("--context", metavar="N", default="", help="tokens of a sequence (default: as `ddp`)")
    parser.add_argument(
        "--batch-size", metavar="N", default="", help="samples per rank and pass, or per pipeline (default: 1, or 32)"
    )
    parser.add_argument(
        "--precision", choices=("fp32", "bf16"), default=None, help="(default: bf16 where a GPU has units for it)"
    )
    parser.add_argument("--recompute", choices=("True", "False"), default=None, help="(default: where it is needed)")
    parser.add_argument(
        "--tp", metavar="N", default=None, help="ranks that compute each layer together (default: 1, more where needed)"
    )
    parser.add_argument("--pp", metavar="N", default=None, help="stages of `pipeline` (default: as few as fit)")
    parser.add_argument("--shard", metavar="N", default=None, help="(default: not at all, one host, or all, as needed)")
    add_where_options(parser)
    add_place_options(parser)


def of_the_job(words: Sequence[str]) -> list[str]:
    """The job, and its options among words that are none of this command's. Raises UserError for a program that is no such job."""
    if words and not words[0].startswith("-"):
        if words[0] not in (JOB, IN_STAGES):
            raise UserError(
                "plan --fit",
                f"{words[0]!r} is not computed ahead",
                allowed=f"{JOB}, {IN_STAGES}",
                fix=f"leave it out, or {JOB}",
            )
        return list(words)
    return [JOB, *words]


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Returns 0 if it fits somewhere. Raises UserError."""
    distributions.need(COMMAND, "algorun_train")
    prices = task_place.read_place(options, environ, Path.cwd()).prices
    asked, without_gpu = _asked(options, prices)
    layouts = placement.layouts(asked)
    if not layouts:
        raise _no_layout(asked)
    words = _words(options)
    if find_spec("torch") is None:
        raise distributions.missing(COMMAND, "torch", "algorun-train")
    if not options.json:
        print(f"algorun: computing the memory of {len(layouts)} layouts", file=sys.stderr)
    least = min(each.stages for each in layouts)
    tried = [each for each in layouts if asked.stages is None and each.stages > least]  # more stages than layers
    model, memories = rank_memory.compute(words, layouts, environ, tried)
    if grouped := placement.with_tensor_groups(asked, memories):
        if not options.json:
            print(f"algorun: computing the memory of {len(grouped)} layouts with --tp", file=sys.stderr)
        memories |= rank_memory.compute(words, grouped, environ, grouped)[1]
    found = placement.offers(asked, memories, prices)
    if options.json:
        for offer in found:
            json_lines.write("fit", **_fields(offer))
    else:
        _show(model, found, "pipeline" if asked.in_stages else "rank")
    offered = {each.instance for each in found}
    _left_out("no GPU, or none whose memory is known", without_gpu)
    _left_out(
        f"{_asked_words(options) or 'no number of stages'} divides no number of its GPUs",
        [each for each in asked.instances if each not in offered],
    )
    if not found[0].fits:
        raise _too_large(found[0])
    if options.json:
        json_lines.write_end(json_lines.LastObject())
    else:
        _advise(found[0], options.model, words)
    return ClientCode.OK


def _asked(options: argparse.Namespace, prices: Mapping[str, float]) -> tuple[Asked, list[str]]:
    """What the command asks for; and the types of the job file that have no GPU, or none whose memory is known."""
    given = tuple(filter(None, options.instance.split(",")))
    named = given or tuple(prices)
    if not named:
        raise UserError(
            "--instance", "not given, and the job file has no `price`", allowed="instance types, separated by commas",
            fix="--instance ml.g5.12xlarge,ml.p4d.24xlarge",
        )  # fmt: skip
    known = tuple(each for each in dict.fromkeys(named) if instance_units.gpu_bytes(each))
    unknown = [each for each in named if each not in known]
    if unknown and (given or not known):
        raise UserError(
            "--instance" if given else "the job file's `price`", f"{', '.join(unknown)}: no GPU, or none whose memory is known",
            allowed=f"types of {', '.join(instance_units.GPU_GB)}",
        )  # fmt: skip
    hosts = whole("--hosts", options.hosts)
    if options.shard not in (None, "all"):
        whole("--shard", options.shard)
    in_stages = options.program[0] == IN_STAGES
    for name in ("tp", "shard") if in_stages else ("pp",):
        if getattr(options, name) not in (None, "1"):
            raise UserError(
                f"--{name}", f"{getattr(options, name)} with {options.program[0]} is not computed ahead", allowed="1",
                fix="leave it out; `pipeline --profile-only` on such a host prints the memory of the largest rank"
                if in_stages else f"`{COMMAND} .. {IN_STAGES}`",
            )  # fmt: skip
    tensor = None if options.tp is None else whole("--tp", options.tp)
    stages = None if options.pp is None else whole("--pp", options.pp)
    if in_stages and stages == 1:
        raise UserError("--pp", "1: that is no pipeline", allowed="2 or more", fix=f"`{COMMAND} .. {JOB}`")
    again = None if options.recompute is None else options.recompute == "True"
    return Asked(known, hosts, options.shard, options.precision, again, tensor, in_stages, stages), unknown


def _no_layout(asked: Asked) -> UserError:
    """No host has so many GPUs that --tp divides them, or no offer so many tensor groups that --shard does, or so many GPUs that --pp
    does."""
    gpus = {instance_units.gpus(each) or 0 for each in asked.instances}
    if asked.in_stages:
        what = f"{asked.stages or 'two stages or more'}: divides no number of GPUs of up to {asked.hosts} hosts"
        return UserError("--pp", what, allowed="a divisor of it, from 2 on", fix="more --hosts, or another --pp")
    if asked.tensor and all(number % asked.tensor for number in gpus):
        listed = ", ".join(map(str, sorted(gpus)))
        what = f"{asked.tensor} does not divide the GPUs of a host ({listed})"
        return UserError("--tp", what, allowed="a divisor of them", fix="--tp 1")
    groups = "GPUs" if asked.tensor in (None, 1) else f"groups of {asked.tensor} GPUs"
    what = f"{asked.shards} divides no number of {groups} of up to {asked.hosts} hosts"
    return UserError("--shard", what, allowed="a divisor of it, or all", fix="leave it out")


def _asked_words(options: argparse.Namespace) -> str:
    words = [f"--{name} {value}" for name in ("pp", "tp") if (value := getattr(options, name)) not in (None, "1")]
    return " with ".join([*words, *([f"--shard {options.shard}"] if options.shard else [])])


def _words(options: argparse.Namespace) -> list[str]:
    """The job, and its options that do not depend on the layout."""
    job, *more = options.program
    context = ("--context", options.context) if options.context else ()
    batch = options.batch_size or ("1" if job == JOB else str(PIPELINE_BATCH))
    return [job, "--model", options.model, *context, "--batch-size", batch, *more]


def _left_out(why: str, instances: Sequence[str]) -> None:
    if instances:
        print(f"algorun: left out: {', '.join(instances)}: {why}", file=sys.stderr)


def _show(model: Model, offers: Sequence[Offer], member: str) -> None:
    of = (
        f"sequence{'s'[: model.batch_size != 1]} of {model.context} tokens"
        if model.context
        else f"image{'s'[: model.batch_size != 1]}"
    )
    print(
        f"{model.architecture}, {model.weights:,} weights; {model.batch_size} {of} on each {member}; memory at the peak of a step"
    )
    table.write(HEADS, [_row(each) for each in offers], 2)


def _row(offer: Offer) -> list[str]:
    memory = offer.memory
    parts = (memory.weights, memory.moments, memory.gradients, memory.gathered, memory.activations, memory.peak)
    share = f"{100 * offer.share:.0f} %{'' if offer.fits else ': too much'}"
    return [
        offer.instance,
        str(offer.hosts),
        " ".join(offer.layout.options) or "-",
        *(size_text(part) if part else "-" for part in parts),
        share,
        "price unknown" if offer.price is None else money(offer.price),
    ]


def _advise(offer: Offer, model: str, words: Sequence[str]) -> None:
    """The command that starts the first offer."""
    job, _, _, *rest = words  # --model FOLDER, which the job finds in its channel
    hosts = ("--hosts", str(offer.hosts)) if offer.hosts > 1 else ()
    line = [
        "submit",
        "--instance",
        offer.instance,
        *hosts,
        "--in",
        f"model={model}",
        job,
        *rest,
        *offer.layout.options,
    ]
    print(command_line.line(line))


def _too_large(offer: Offer) -> UserError:
    return UserError(
        "--model", f"fits on none of these hosts: the nearest is {offer.hosts} x {offer.instance}, where a rank "
        f"needs {size_text(offer.memory.peak)} of a GPU's {size_text(offer.gpu)}",
        allowed=f"{placement.USABLE:.0%} of it", fix="more --hosts, other types, or a shorter --context",
    )  # fmt: skip


def _fields(offer: Offer) -> dict[str, object]:
    memory, layout = offer.memory, offer.layout
    return {
        "instance": offer.instance,
        "hosts": offer.hosts,
        "pp": layout.stages,
        "tp": layout.tensor,
        "shard": layout.shards,
        "precision": layout.precision,
        "recompute": layout.recompute,
        "weights": memory.weights,
        "moments": memory.moments,
        "gradients": memory.gradients,
        "gathered": memory.gathered,
        "activations": memory.activations,
        "peak": memory.peak,
        "gpu": offer.gpu,
        "fits": offer.fits,
        "price": offer.price,
    }
