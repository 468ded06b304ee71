"""Which place in the training a line is about: the number of a step, else that of an epoch. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from algorun_report.run_report import MetricPlace

# A number after one of these words, with `:`, `=`, `[` or a blank between: `step: 50/240`, `Step [50/240]`, `'epoch': 1.5`.
# Neither a path (`step-00000050`) nor a duration (`step: 0.35 s`, `step: 35ms`) is one.
_BETWEEN = r"['\"]?(?: ?[:=] ?\[?| ?\[ ?| )"
STEP = re.compile(
    rf"(?<![\w./-])(?:global[_ ]?step|step|iteration|iter){_BETWEEN} {{0,9}}(\d{{1,12}})(?![\d\w]|\.\d| ?m?s\b)",
    re.IGNORECASE,
)
EPOCH = re.compile(rf"(?<![\w./-])epoch{_BETWEEN} {{0,9}}(\d{{1,9}}(?:\.\d{{1,12}})?)(?![\d\w]| ?m?s\b)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LinePlace:
    """A line's place. A line with a step is about the step, even if it has an epoch too."""

    kind: MetricPlace
    number: float = 0.0
    epoch: float = math.nan  # of a line with a step, NaN without


def place_of(line: str) -> LinePlace:
    """The place that a line names."""
    step, epoch = STEP.search(line), EPOCH.search(line)
    if step:
        return LinePlace(MetricPlace.STEP, float(step[1]), float(epoch[1]) if epoch else math.nan)
    return LinePlace(MetricPlace.EPOCH, float(epoch[1])) if epoch else LinePlace(MetricPlace.NONE)
