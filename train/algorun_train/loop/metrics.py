"""The reports of training and their lines in the log. Users' regular expressions read these lines, so they must not change.

    train_loss: ([0-9\\.]+)    val_loss : ([0-9\\.]+)    val_accuracy: ([0-9\\.]+)    images_per_s: ([0-9\\.]+)
    sequences_per_s: ([0-9\\.]+)    learning_rate: ([0-9\\.]+)    data_wait: ([0-9\\.]+)    peak_memory_mib: ([0-9\\.]+)
    of text also:    train_perplexity: ([0-9\\.]+)    val_perplexity: ([0-9\\.]+)    tokens_per_s: ([0-9\\.]+)

`val_loss :` has a space because existing expressions expect it.
"""

import math
from dataclasses import asdict, dataclass

TOKENS = "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast the job is: over all ranks, since the last report."""

    unit: str  # what samples are called: images, sequences
    samples_per_s: float
    sample_tokens: int = 0  # of each sample; 0: samples are not text
    data_wait: float  # share of the time, 0..1, in which a rank waited for data; the mean over all ranks
    peak_memory_mib: float  # the largest of all ranks: of a GPU, or without GPUs of a process
    eta_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.samples_per_s * self.sample_tokens

    def __str__(self) -> str:
        tokens = f"{per_s(TOKENS)}: {self.tokens_per_s:.1f} " if self.sample_tokens else ""
        return (
            f"{per_s(self.unit)}: {self.samples_per_s:.1f} {tokens}data_wait: {self.data_wait:.4f} "
            f"peak_memory_mib: {self.peak_memory_mib:.1f} eta: {clock(self.eta_s)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Progress inside an epoch. `epoch` counts from 1; `train_loss` is the mean since the last report."""

    step: int
    steps: int
    epoch: int
    epochs: int
    train_loss: float
    learning_rate: float
    pace: Speed

    def __str__(self) -> str:
        return (
            f"step: {self.step}/{self.steps} epoch: {self.epoch}/{self.epochs} train_loss: {self.train_loss:.4f} "
            f"{_perplexity_words('train', self.train_loss, self.pace)}"
            f"learning_rate: {self.learning_rate:.8f} {self.pace}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReport:
    """An epoch and its evaluation. Losses are means over all samples, the accuracy is 0..1."""

    step: int
    epoch: int
    epochs: int
    train_loss: float
    val_loss: float
    val_accuracy: float
    pace: Speed

    def __str__(self) -> str:
        return (
            f"epoch: {self.epoch}/{self.epochs} train_loss: {self.train_loss:.4f} val_loss : {self.val_loss:.4f} "
            f"{_perplexity_words('train', self.train_loss, self.pace)}{_perplexity_words('val', self.val_loss, self.pace)}"
            f"val_accuracy: {self.val_accuracy:.4f} {self.pace}"
        )


def record(report: StepReport | EpochReport) -> dict[str, str | int | float]:
    """The report as one flat JSON object; "kind" is "step" or "epoch"."""
    flat = asdict(report)
    pace: dict[str, str | int | float] = flat.pop("pace")
    del pace["unit"], pace["sample_tokens"]
    speed = {per_s(report.pace.unit): pace.pop("samples_per_s")}
    if report.pace.sample_tokens:
        losses = {"train_perplexity": "train_loss", "val_perplexity": "val_loss"}
        flat |= {name: perplexity(flat[loss]) for name, loss in losses.items() if loss in flat}
        speed[per_s(TOKENS)] = report.pace.tokens_per_s
    return {"kind": "step" if isinstance(report, StepReport) else "epoch"} | flat | speed | pace


def perplexity(loss: float) -> float:
    """exp(loss), the number of tokens that the model hesitates between. A loss above 100 counts as 100, so it stays finite."""
    return math.exp(min(loss, 100.0))


def _perplexity_words(split: str, loss: float, pace: Speed) -> str:
    return f"{split}_perplexity: {perplexity(loss):.4f} " if pace.sample_tokens else ""


def per_s(unit: str) -> str:
    """The name of the speed in log lines, records, curves and the summary, such as `images_per_s`."""
    return f"{unit}_per_s"


def clock(seconds: float) -> str:
    """A duration as h:mm:ss; `?` if it is not finite."""
    if not math.isfinite(seconds):
        return "?"
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
