"""What the jobs of a tuning have cost and may still cost: --max-cost bounds all of its points together."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from algorun_client.aws import job_cost
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
    run_s: float  # --max-run
    kept_s: float  # --keep-alive
    prices: dict[str, float]
    describe: Callable[[Kind, str], JobState]
    paid: dict[str, float] = field(default_factory=dict)  # by job, once it has ended

    @classmethod
    def of(cls, spec: TaskSpec, describe: Callable[[Kind, str], JobState]) -> TuningCost | None:
        """That of a point's task; None if its cost has no limit. The price of its hosts is known: `rules` has asked for it."""
        resources = spec.resources
        limit, most = cost_limit(spec), rules.most_cost(resources)
        if limit is None or most is None:
            return None
        return cls(limit, most, resources.max_run_s, resources.keep_alive_s or 0, dict(resources.prices), describe)

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
        amount = job_cost.most(state, self.prices, run_s=self.run_s, kept_s=self.kept_s)
        if amount is None:
            return self.most
        is_final = state.times.billable_s is not None and (not self.kept_s or state.times.keeping_has_ended)
        return self.paid.setdefault(placed.job, amount) if is_final else amount
