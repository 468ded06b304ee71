"""What the jobs of a tuning have cost and may still cost: --max-cost bounds all of its points together."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from algorun_client.aws.job_cost import HOUR_S, cost
from algorun_client.aws.job_state import JobState
from algorun_client.common.errors import NotFound
from algorun_client.request.model import Kind
from algorun_client.submit.assemble import rules
from algorun_client.submit.place.place import Placed
from algorun_client.submit.read.spec import TaskSpec, Where


def cost_limit(spec: TaskSpec) -> float | None:
    """The most that all jobs of a tuning may cost; None if nobody has set a limit, or the jobs cost nothing."""
    return spec.resources.max_cost if spec.where is Where.AWS else None


@dataclass(slots=True)
class TuningCost:
    """The cost of one tuning, as far as it is known. `describe` asks for the state of a job."""

    limit: float
    most: float  # that one job can cost
    kept: float  # of it for hosts that --keep-alive keeps after the job
    prices: dict[str, float]
    describe: Callable[[Kind, str], JobState]
    paid: dict[str, float] = field(default_factory=dict)  # by job, once it has ended

    @classmethod
    def of(cls, spec: TaskSpec, describe: Callable[[Kind, str], JobState]) -> TuningCost | None:
        """That of a point's task; None if its cost has no limit. The price of its hosts is known: `rules` has asked for it."""
        resources = spec.resources
        limit, most, an_hour = cost_limit(spec), rules.most_cost(resources), rules.rate(resources)
        if limit is None or most is None or an_hour is None:
            return None
        kept = an_hour * (resources.keep_alive_s or 0) / HOUR_S
        return cls(limit, most, kept, dict(resources.prices), describe)

    def allows(self, ended: Collection[Placed], others: int) -> bool:
        """True if one more job can cost its most, and all jobs together no more than the limit. Raises ApiError.

        `others`: how many jobs run or are to run; each counts with its most.
        """
        return self._so_far(ended) + (others + 1) * self.most <= self.limit

    def told(self, ended: Collection[Placed]) -> str:
        """Why there is no further job, in words. Raises ApiError."""
        return (
            f"they could cost more than --max-cost {self.limit:.2f}: {self._so_far(ended):.2f} so far, and one more "
            f"job up to {self.most:.2f}"
        )

    def _so_far(self, ended: Collection[Placed]) -> float:
        return sum(map(self._cost_of, ended))

    def _cost_of(self, placed: Placed) -> float:
        """What a job that has ended cost; the most that it can have cost if nobody knows."""
        known = self.paid.get(placed.job)
        if known is not None:
            return known
        try:
            state = self.describe(placed.kind, placed.job)
        except NotFound:  # nobody knows its time any more
            return self.paid.setdefault(placed.job, self.most)
        amount = cost(state, self.prices).amount
        if amount is None:  # it may be told later
            return self.most
        if self.kept and not state.times.keeping_has_ended:  # its hosts may be kept for the whole time
            return min(self.most, amount + self.kept)
        return self.paid.setdefault(placed.job, amount)
