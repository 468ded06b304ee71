"""Models of Hugging Face folders, made here with random weights: how fast they train, what they need and what they write."""

from __future__ import annotations

import json
import math
import shutil
import statistics
from dataclasses import dataclass, replace
from pathlib import Path

from algorun.machine.gpu_peaks import peak
from tests.gpu.session import Figure, Outcome, Seen, Session, Stop, Wrong, needs_a_compiler, program
from tests.gpu.sizes import GIB, Llama

from . import training

ROOMY = 40 * GIB  # bytes of a GPU: below it a batch is a quarter
LEAST_READINGS = 3  # progress reports after the first one
MIB = 2**20
FP32 = 4  # bytes of a weight
LEARNED = 0.9  # the last reported loss is at most this share of the first one
# Between two ways to compute in bf16. docs/models.md has gradients up to 5 % apart; the losses of the first steps follow
# them by less, and later ones drift apart as any two runs that round differently.
BF16_LOSS = 0.05
MEMORY_SPREAD = (0.6, 1.25)  # a measured peak over the formula
# The closing table's tokens/s over the reports' median: a mean of all steps, slow ones among them.
TABLE_SPREAD = (0.5, 1.5)
LORA = 8
# A job whose last report is read may go without its checkpoint: it has this long for it, and is killed then.
LEAVE = {"ALGORUN_GRACE_S": "1"}
TABLE = r"^  trained ([\d.]+) samples/s, ([\d.]+) tokens/s(?:, MFU ([\d.]+)%)?$"
PLAIN = "folder"  # the check whose figures others are compared with


@dataclass(frozen=True, slots=True)
class Trained:
    """A finished epoch, by its progress reports. `tokens_per_s` is their median without the first one's."""

    tokens_per_s: float
    losses: tuple[float, ...]
    peak_bytes: float
    outcome: Outcome


def folder(session: Session) -> Seen:
    """From a folder to a folder: speed, MFU as the job itself states it, and the peak beside the formula."""
    sizes = _sizes(session)
    made = _llama(session)
    trained = _train(session, "whole")
    done = trained.outcome
    if not (done.base / "model" / "model.safetensors").is_file():
        raise Wrong("no model.safetensors in the artifact")
    table = done.find(TABLE)
    closing = float(table[2])
    least, most = TABLE_SPREAD
    if not least <= closing / trained.tokens_per_s <= most:
        raise Wrong(
            f"the closing table has {closing:,.0f} tokens/s, the reports' median is {trained.tokens_per_s:,.0f}"
        )
    how = f"{_model(made['weights'], sizes)}, bf16, AdamW, one rank, batch {sizes.batch}"
    figures = [
        Figure("Llama folder, tokens/s", f"{trained.tokens_per_s:,.0f}", f"{how}, median of {_count(trained)} reports"),
        Figure("Llama folder, tokens/s of the closing table", f"{closing:,.0f}", "all steps after the first"),
        _mfu(session, table[3]),
        *_memory(session, trained, made, how),
    ]
    return Seen(f"{trained.tokens_per_s:,.0f} tokens/s, loss {_curve(trained)}", tuple(figures))


def compiled(session: Session) -> Seen:
    """The same with --compile: faster or not, the losses are those of the plain run."""
    needs_a_compiler()
    plain, trained = _plain(session), _train(session, "compiled", "--compile", "True", saves=False)
    _same_losses(trained.losses, plain.losses)
    figures = (
        Figure("Llama folder with --compile, tokens/s", f"{trained.tokens_per_s:,.0f}", "the same, compiled"),
        Figure(
            "--compile over the plain run, tokens/s", f"{trained.tokens_per_s / plain.tokens_per_s:.3f}", "the medians"
        ),
    )
    return Seen(f"{trained.tokens_per_s:,.0f} tokens/s, loss {_curve(trained)}", figures)


def sharded(session: Session) -> Seen:
    """FSDP2 on one rank, through the parts that `ddp --shard` is made of: the losses of the whole model."""
    sizes = _sizes(session)
    _llama(session)
    steps = str(min(sizes.steps, 20))
    where, words = _made(session, "llama"), (steps, str(sizes.batch), str(sizes.context), str(sizes.rate))
    done = session.run(
        "run", "--slots", "1", program("whole_and_sharded.py"), str(where), *words, base=session.base()
    ).must()
    found = json.loads(done.find(r"measured: (\{.*\})$")[1])
    wanted = "nccl" if session.machine.on_gpu else "gloo"
    if found["backend"] != wanted or found["device"] != session.machine.kind:
        raise Wrong(f"{found['backend']} on {found['device']}, not {wanted} on {session.machine.kind}")
    whole, shared = found["whole"]["losses"], found["sharded"]["losses"]
    _falls(shared)
    off = _same_losses(shared, whole)
    called = found["sharded"]["collectives"]
    return Seen(
        f"{len(shared)} steps over {wanted}, loss {shared[0]:.4f} to {shared[-1]:.4f}, whole {whole[-1]:.4f}, at most "
        f"{off:.2%} apart; collectives that the profiler saw in a sharded step: {called}"
    )


def sharded_over_two(session: Session) -> Seen:
    """`ddp --shard all` on two ranks, each with half the batch: the losses of one rank with the whole model."""
    plain = _plain(session)
    half = str(_sizes(session).batch // 2)
    trained = _train(session, "two", "--shard", "all", "--batch-size", half, ranks=2, saves=False)
    trained.outcome.find(r"sharded: over 2 ranks, 1 replicas")
    off = _same_losses(trained.losses, plain.losses)
    figure = Figure("Llama folder, --shard all on 2 ranks, tokens/s", f"{trained.tokens_per_s:,.0f}", "the same batch")
    return Seen(f"loss {_curve(trained)}, at most {off:.2%} from one rank's", (figure,))


def synchronisation(session: Session) -> Seen:
    """A language model of transformers does not look at values in its forward pass."""
    sizes, where = _sizes(session), _made(session, "llama")
    _llama(session)
    return training.without_waits(
        session.run(
            *("run", "--slots", "1", program(training.WAITS), "--model", str(where / "model")),
            *("--train", str(where / "train"), "--validation", str(where / "val"), "--context", str(sizes.context)),
            *("--precision", "bf16", "--epochs", "1", "--batch-size", str(sizes.batch), "--checkpoint-interval-s", "0"),
            base=session.base(),
        ).must()
    )


def lora(session: Session) -> Seen:
    """The adapter trains, and the artifact is the adapter alone."""
    _llama(session)
    trained = _train(session, "lora", "--lora", str(LORA), "--lr", str(_sizes(session).rate * 10), learned=1.0)
    folder = trained.outcome.base / "model"
    if whole := sorted(path.name for path in folder.glob("model*.safetensors")):
        raise Wrong(f"the artifact has the whole model: {', '.join(whole)}")
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    if config["r"] != LORA:
        raise Wrong(f"adapter_config.json has rank {config['r']}, not {LORA}")
    size = (folder / "adapter_model.safetensors").stat().st_size
    said = trained.outcome.find(r"\] (.*weights train \(LoRA of rank \d+ on .*)$")[1]
    figure = Figure("Llama folder with --lora 8, tokens/s", f"{trained.tokens_per_s:,.0f}", said)
    return Seen(f"loss {_curve(trained)}, an adapter of {size / MIB:.1f} MiB", (figure,))


def images(session: Session) -> Seen:
    """A ViT on JPEG files: it has to tell four colours apart."""
    sizes = session.sizes.vit
    where = _made(session, "vit")
    made = _make(session, where, "make_vit.py", sizes.argv())
    done = session.run(
        *("run", "--slots", "1", "ddp", "--model", str(where / "model"), "--train", str(where / "train")),
        *("--validation", str(where / "val"), "--precision", "bf16", "--batch-size", str(sizes.batch)),
        *("--epochs", "2", "--warmup-epochs", "0", "--lr", str(sizes.rate), "--log-interval", "2"),
        base=session.base(),
    ).must()
    _on_device(session, done)
    found = done.summary
    if not found["accuracy"] > 1.5 / 4:  # of four classes; NaN fails as well
        raise Wrong(f"accuracy {found['accuracy']:.3f} after {found['steps']} steps on four colours")
    if not (done.base / "model" / "preprocessor_config.json").is_file():
        raise Wrong("no preprocessor_config.json in the artifact")
    how = (
        f"{made['weights'] / 1e6:,.1f} M weights, {sizes.side} px, bf16, batch {sizes.batch}, {sizes.images} JPEG files "
        f"of {sizes.side * 3 // 2} px twice, decoding included"
    )
    figure = Figure("ViT folder, images/s", f"{found['images_per_s']:,.0f}", how)
    return Seen(f"accuracy {found['accuracy']:.3f} after {found['steps']:.0f} steps", (figure,))


def _sizes(session: Session) -> Llama:
    machine, sizes = session.machine, session.sizes.llama
    small = machine.on_gpu and machine.memory_bytes < ROOMY
    return replace(sizes, batch=sizes.batch // 4) if small else sizes


def _made(session: Session, name: str) -> Path:
    """Where a folder is made, beside the checks' own folders: several checks train it."""
    return session.folder / "made" / name


def _make(session: Session, where: Path, by: str, words: list[str]) -> dict[str, float]:
    """What the program said of the folder that it has made, now or for an earlier check."""
    said = where / "made.json"
    if not said.is_file():
        shutil.rmtree(where, ignore_errors=True)  # half of one, where the check's time was over
        where.mkdir(parents=True)
        done = session.python_program(
            "-m", f"tests.gpu.programs.{by[:-3]}", *words, str(where), base=session.base("make")
        )
        said.write_text(done.must().find(r"^made: (\{.*\})$")[1], encoding="utf-8")
    return dict(json.loads(said.read_text(encoding="utf-8")))


def _llama(session: Session) -> dict[str, float]:
    return _make(session, _made(session, "llama"), "make_llama.py", _sizes(session).argv())


def _plain(session: Session) -> Trained:
    """What `folder` has found; where it did not run, or failed, its job once more, without the artifact."""
    known = session.found.get(PLAIN)
    if isinstance(known, Trained):
        return known
    _llama(session)
    return _train(session, "whole", saves=False)


def _train(
    session: Session, name: str, *words: str, ranks: int = 1, saves: bool = True, learned: float = LEARNED
) -> Trained:
    """One epoch of `ddp` on the Llama; without `saves` the job ends behind its last report. The last of equal options counts."""
    sizes, where = _sizes(session), _made(session, "llama")
    done = session.run(
        *("run", "--slots", str(ranks), "ddp", "--model", str(where / "model"), "--train", str(where / "train")),
        *("--validation", str(where / "val"), "--context", str(sizes.context), "--precision", "bf16", "--epochs", "1"),
        *("--warmup-epochs", "0", "--log-interval", str(sizes.log_interval), "--checkpoint-interval-s", "0"),
        *_last_of({"--batch-size": str(sizes.batch), "--lr": str(sizes.rate)}, words),
        base=session.base(name),
        stop=None if saves else Stop("val_loss :", 0.0),
        **({} if saves else LEAVE),
    )
    if saves:
        done.must()
    done.find(r"val_loss : [\d.]+")  # else the job failed before: its last lines
    _on_device(session, done)
    trained = _read(done, sizes.context)
    _falls(trained.losses, learned)
    if name == "whole":
        session.found[PLAIN] = trained
    return trained


def _last_of(options: dict[str, str], words: tuple[str, ...]) -> list[str]:
    options = options | dict(zip(words[::2], words[1::2], strict=True))
    return [word for pair in options.items() for word in pair]


def _read(done: Outcome, context: int) -> Trained:
    lines = (done.base / "output" / "data" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    reports = [json.loads(line) for line in lines]
    steps = [report for report in reports if report["kind"] == "step"]
    if len(steps) - 1 < LEAST_READINGS:
        raise Wrong(f"{len(steps)} progress reports, {LEAST_READINGS + 1} are needed")
    per_s = statistics.median(report["sequences_per_s"] for report in steps[1:])
    peak_bytes = max(report["peak_memory_mib"] for report in reports) * MIB
    return Trained(per_s * context, tuple(report["train_loss"] for report in steps), peak_bytes, done)


def _falls(losses: tuple[float, ...] | list[float], share: float = LEARNED) -> None:
    if not all(map(math.isfinite, losses)) or not losses[-1] < losses[0] * share:
        raise Wrong(
            f"the loss went from {losses[0]:.4f} to {losses[-1]:.4f}: it has to fall below {share:g} of the first"
        )


def _same_losses(found: tuple[float, ...] | list[float], wanted: tuple[float, ...] | list[float]) -> float:
    """The largest distance of two losses of the same step, as a share. Raises Wrong where it is too large."""
    if len(found) != len(wanted):
        raise Wrong(f"{len(found)} losses beside {len(wanted)}")
    pairs = list(zip(found, wanted, strict=True))
    off = max(abs(one - other) / other for one, other in pairs)
    if not off <= BF16_LOSS:
        texts = ", ".join(f"{one:.4f} ({other:.4f})" for one, other in pairs)
        raise Wrong(f"losses are up to {off:.1%} from those of the whole model, more than {BF16_LOSS:.0%}: {texts}")
    return off


def _memory(session: Session, trained: Trained, made: dict[str, float], how: str) -> list[Figure]:
    """The peak beside 4 W + A of docs/models.md. On the CPU the peak is the process's, which says nothing about the formula."""
    weights = made["weights"] * FP32
    if not session.machine.on_gpu:
        return [Figure("Llama folder, peak memory", _bytes(trained.peak_bytes), f"{how}; of the process")]
    if not made["kept_bytes"]:
        raise Wrong("the program that made the folder saw no GPU")
    formula = 4 * weights + made["kept_bytes"]
    share = trained.peak_bytes / formula
    least, most = MEMORY_SPREAD
    if not least <= share <= most:
        raise Wrong(f"a peak of {_bytes(trained.peak_bytes)}, {share:.2f} of 4 W + A = {_bytes(formula)}")
    parts = f"4 x {_bytes(weights)} + {_bytes(made['kept_bytes'])}, which a forward pass of transformers' model keeps"
    return [
        Figure("Llama folder, peak memory", _bytes(trained.peak_bytes), f"{how}; of the allocator, in the whole job"),
        Figure("Llama folder, 4 W + A", _bytes(formula), parts),
        Figure("Llama folder, peak over 4 W + A", f"{share:.3f}", "the same"),
    ]


def _mfu(session: Session, said: str | None) -> Figure:
    """MFU of the closing table. Raises Wrong where the GPU's peak is known and the table has none."""
    name = session.machine.names[0] if session.machine.on_gpu else ""
    if said is not None:
        return Figure(
            "Llama folder, MFU of the closing table", f"{said}%", f"6 operations per weight and token; {name}"
        )
    if name and peak(name):
        raise Wrong(f"the closing table has no MFU, although the peak of {name} is known")
    return Figure("Llama folder, MFU of the closing table", "-", f"the peak of {name or 'a CPU'} is not known")


def _model(weights: float, sizes: Llama) -> str:
    return (
        f"Llama of {weights / 1e6:,.1f} M weights (width {sizes.width}, depth {sizes.depth}, {sizes.vocabulary} words), "
        f"context {sizes.context}"
    )


def _curve(trained: Trained) -> str:
    return f"{trained.losses[0]:.4f} to {trained.losses[-1]:.4f}"


def _count(trained: Trained) -> int:
    return len(trained.losses) - 1


def _bytes(count: float) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB else f"{count / MIB:.1f} MiB"


def _on_device(session: Session, done: Outcome) -> None:
    """Raises Wrong where the model was on another device."""
    done.find(rf"bf16 on {session.machine.kind}$")
