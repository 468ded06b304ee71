"""Which of several jobs is the best one: a metric, and whether more or less of it is better. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from algorun.common.errors import UserError

from . import values

FORM = "max:METRIC or min:METRIC"
# Words of a metric's name that tell which way is better.
LOWER = frozenset({"loss", "error", "err", "perplexity", "ppl", "mae", "mse", "rmse", "wer", "fid"})
HIGHER = frozenset(
    {"accuracy", "acc", "acc1", "acc5", "top1", "top5", "auc", "f1", "map", "bleu", "score", "precision", "recall"}
)
WORD = re.compile(r"[A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class Goal:
    """A metric, and True if its lowest value is the best one."""

    metric: str
    lowest: bool

    @property
    def text(self) -> str:
        """In words."""
        return f"{'lowest' if self.lowest else 'highest'} {self.metric}"


def parse(where: str, raw: object) -> Goal:
    """A goal from `max:accuracy`, `min:loss`, or a name that tells the way itself. Raises UserError."""
    given = values.text(where, raw)
    way, colon, metric = given.partition(":")
    if colon and way in ("max", "min") and metric:
        return Goal(metric, way == "min")
    words = {word.lower() for word in WORD.findall(given)}
    if bool(words & LOWER) == bool(words & HIGHER):
        raise UserError(
            where, f"{given!r} does not say which way is better", allowed=FORM, fix=f"max:{given}, or min:{given}"
        )
    return Goal(given, bool(words & LOWER))
