"""Whether a loss lies far above those before it. Pure."""

import math
import statistics
from collections import deque

WINDOW = 32  # losses that are compared with
LEAST = 8  # fewer tell nothing
DEVIATIONS = 8.0  # of the usual scatter; the losses of a healthy training are skewed
NORMAL = 1.4826  # the standard deviation of normal numbers, in median absolute deviations
LEAST_SCATTER = 0.05  # of the median: losses that hardly scatter are no reason to call one a spike


class LossSpikes:
    """Keeps the last losses. The median and the median absolute deviation are not moved by a spike, as means would be."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=WINDOW)

    def add(self, loss: float) -> str:
        """Adds a loss; a line about it where it is a spike, else ""."""
        before, line = list(self._losses), ""
        if len(before) >= LEAST:
            median = statistics.median(before)
            scatter = NORMAL * statistics.median(abs(each - median) for each in before)
            scatter = max(scatter, LEAST_SCATTER * abs(median))
            if loss > median + DEVIATIONS * scatter:
                line = f"the loss is {loss:.4f}; the median of the {len(before)} before it is {median:.4f}"
        if math.isfinite(loss):
            self._losses.append(loss)
        return line
