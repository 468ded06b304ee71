"""Which point a tuning takes next, and which job it stops early: Optuna's samplers and pruners on what is known of the points.

The same points with the same results give the same next point, on every machine: the seed follows from the table's seed and
from the number of the point. So a client that is killed before it has written its choice down makes the same choice again.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeAlias

from algorun.common import distributions
from algorun.common.errors import UserError
from algorun_client.submit.history.tune_history import ChosenPoint, PointEnding
from algorun_client.submit.read.sweep import text_of
from algorun_client.submit.read.tune import Dimension, Method, TaskTune, ValueChoices

if TYPE_CHECKING:
    import optuna

Value: TypeAlias = str | float
NAME = "tune"  # of the study: Hyperband sorts points into its brackets by this and by their numbers
TRIES = 16  # other seeds for a point that was chosen already
MOST_LISTED = 100_000  # points of a space that are looked through after that
DIGITS = 8  # of a seed, hexadecimal


def need_optuna(where: str) -> None:
    """Raises UserError if Optuna is not installed."""
    if find_spec("optuna") is None:
        fix = distributions.install_extra("algorun-client", "tune", "optuna")
        raise UserError(where, "optuna, which chooses the points, is not installed", fix=fix)


class TuneStudy:
    """The points of one tuning, as far as they are known."""

    def __init__(self, asked: TaskTune) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._asked = asked
        self._space = {name: distribution(each) for name, each in asked.space.items()}
        self._study = self._made(0)
        self._trials: dict[int, optuna.Trial] = {}  # those that have not ended
        self._seen: dict[int, int] = {}  # the last look at each
        self._lag: set[int] = set()

    def add(self, point: ChosenPoint) -> None:
        """A point was chosen. Points come in the order of their numbers. Raises UserError for one outside of the space."""
        values = {}
        for name, each in self._asked.space.items():
            try:
                values[name] = _value(each, point.parameters[name])
            except (KeyError, ValueError) as error:
                text = f"point {point.number} of the tuning is {text_of(point.parameters)}: {error}"
                raise UserError(self._asked.where, text, fix="--force begins a new tuning") from None
        self._study.enqueue_trial(values)
        self._trials[point.number] = self._study.ask(self._space)
        if point.end is not None:
            self.report(point.number, point.end.curve)
            self.end(point.number, point.end.ending, float(point.end.value) if point.end.value else None)

    @property
    def open(self) -> Collection[int]:
        """The points that have not ended."""
        return self._trials.keys()

    def report(self, number: int, curve: Mapping[int, float]) -> bool:
        """What a point's job has printed, after so many values. True if the job lags behind and may be stopped early."""
        trial = self._trials[number]
        for step in sorted(curve):
            if step in self._asked.looks and step > self._seen.get(number, 0):
                self._seen[number] = step
                trial.report(curve[step], step)
                if trial.should_prune():
                    self._lag.add(number)
        return number in self._lag

    def end(self, number: int, ending: PointEnding, value: float | None) -> None:
        """A point has ended. `value`: the last one of its metric."""
        import optuna

        states = optuna.trial.TrialState
        trial = self._trials.pop(number)
        if ending is PointEnding.FAILED or value is None:
            self._study.tell(trial, state=states.FAIL)
        elif ending is PointEnding.STOPPED_EARLY:
            self._study.tell(trial, state=states.PRUNED)  # its value: what was reported last
        else:
            self._study.tell(trial, value)

    def choose(self, is_taken: Callable[[Mapping[str, str]], bool]) -> dict[str, str] | None:
        """The next point, one that is not taken; None if the space has no other."""
        number = len(self._study.trials) + 1
        for each in range(TRIES):
            found = self._suggested(number, each)
            if not is_taken(found):
                return found
        if self._asked.size is None or self._asked.size > MOST_LISTED:
            return None
        left = [each for each in self._asked.all_points() if not is_taken(each)]
        return dict(left[seed_of(self._asked.seed, number, TRIES) % len(left)]) if left else None

    def _suggested(self, number: int, try_: int) -> dict[str, str]:
        """The point that a sampler with a seed of its own suggests. The study stays as it is."""
        probe = self._made(seed_of(self._asked.seed, number, try_))
        probe.add_trials(self._study.get_trials(deepcopy=False))
        found = probe.ask(self._space).params
        return {name: _text(each, found[name]) for name, each in self._asked.space.items()}

    def _made(self, seed: int) -> optuna.Study:
        import optuna

        asked = self._asked
        pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
        if asked.method is Method.HYPERBAND:
            pruner = optuna.pruners.HyperbandPruner(
                min_resource=asked.least, max_resource=asked.steps, reduction_factor=asked.factor
            )
        elif asked.by_median:
            pruner = optuna.pruners.MedianPruner()  # it waits for five points that have ended by themselves
        directions = optuna.study.StudyDirection
        direction = directions.MINIMIZE if asked.goal.lowest else directions.MAXIMIZE
        return optuna.create_study(
            study_name=NAME, direction=direction, sampler=sampler(asked.method, seed), pruner=pruner
        )


def sampler(method: Method, seed: int) -> optuna.samplers.BaseSampler:
    """Optuna's sampler of a method."""
    import optuna

    if method is Method.RANDOM:
        return optuna.samplers.RandomSampler(seed=seed)
    with warnings.catch_warnings():  # earlier versions of Optuna call constant_liar experimental
        warnings.simplefilter("ignore")
        # Points whose jobs run count as bad ones: jobs beside each other try other places.
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


def seed_of(seed: int, number: int, try_: int = 0) -> int:
    """The seed of the sampler that suggests the point of this number."""
    digest = hashlib.sha256(json.dumps([seed, number, try_]).encode()).hexdigest()
    return int(digest[:DIGITS], 16)


def distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    """Optuna's word for a dimension."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(dimension, ValueChoices):
        return CategoricalDistribution(dimension.texts)
    if dimension.is_whole:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.is_log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.is_log)


def rebuilt(asked: TaskTune, points: Iterable[ChosenPoint]) -> TuneStudy:
    """The study of these points."""
    made = TuneStudy(asked)
    for point in points:
        made.add(point)
    return made


def _value(dimension: Dimension, text: str) -> Value:
    """The value of a text. Raises ValueError for one that the dimension does not have."""
    if not isinstance(dimension, ValueChoices):
        return dimension.number(text)
    if text not in dimension.texts:
        raise ValueError(f"{text!r} is none of {', '.join(dimension.texts)}")
    return text


def _text(dimension: Dimension, value: Value) -> str:
    return str(value) if isinstance(dimension, ValueChoices) else dimension.text(float(value))
