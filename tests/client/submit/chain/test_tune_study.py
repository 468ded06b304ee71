"""Which point is chosen next, and which job is stopped early: beside Optuna used directly, and on a surface that is known."""

from __future__ import annotations

import itertools
import math
import sys
from statistics import median

import pytest

from algorun.common.errors import UserError
from algorun_client.request.model import Kind
from algorun_client.submit.chain import tune_study
from algorun_client.submit.chain.tune_study import TuneStudy, rebuilt
from algorun_client.submit.history.tune_history import ChosenPoint, PointEnd, PointEnding
from algorun_client.submit.read import tune

optuna = pytest.importorskip("optuna")

SPACE = {
    "lr": {"from": 1e-5, "to": 1e-1, "log": True},
    "layers": {"from": 1, "to": 8},
    "act": {"values": ["relu", "gelu", "silu"]},
}
SQUARE = {"lr": {"from": 1e-5, "to": 1e-1, "log": True}, "x": {"from": -1.0, "to": 1.0}}


def asked(space=None, **keys: object) -> tune.TaskTune:
    return tune.parse("w", {"goal": "min:loss", "points": 30, "space": space or SPACE, **keys})


def chosen(number: int, parameters, ending=None, value: float | None = None, curve=None) -> ChosenPoint:
    end = None
    if ending is not None:
        text = "" if value is None else repr(value)
        end = PointEnd(ending=ending, kind=Kind.TRAINING, job="j", execution=1, value=text, curve=curve or {})
    return ChosenPoint(number=number, parameters=parameters, after=0, end=end)


def loss(parameters) -> float:
    """A valley along lr, one along x; its lowest value is 0."""
    return (math.log10(float(parameters["lr"])) + 2.5) ** 2 / 4 + (float(parameters.get("x", 0.37)) - 0.37) ** 2


def mixed(table: tune.TaskTune, count: int) -> list[ChosenPoint]:
    """Points of every kind: completed, failed, stopped early, and the last two run."""
    study, points = TuneStudy(table), []
    for number in range(1, count + 1):
        found = study.choose(lambda _: False)
        ending = (PointEnding.COMPLETED, PointEnding.COMPLETED, PointEnding.FAILED, PointEnding.STOPPED_EARLY)[
            number % 4
        ]
        curve = {step: loss(found) + 1 / step for step in table.looks[: 1 + number % 3]}
        point = chosen(number, found, ending, loss(found), curve) if number <= count - 2 else chosen(number, found)
        study.add(point)
        points.append(point)
    return points


@pytest.mark.parametrize("method", ["random", "bayesian", "hyperband"])
def test_the_same_points_give_the_same_next_point(method):
    """A client that is killed between its choice and the write chooses the same again, on any machine."""
    table = asked(method=method, **({"steps": 27} if method == "hyperband" else {}))
    points = mixed(table, 14)
    first = [rebuilt(table, points).choose(lambda _: False) for _ in range(3)]
    assert first[0] == first[1] == first[2]
    assert (
        rebuilt(asked(method=method, seed=1, **({"steps": 27} if method == "hyperband" else {})), points).choose(
            lambda _: False
        )
        != first[0]
    )
    study = TuneStudy(table)  # what is told in another order, as by jobs that run beside each other
    for point in points:
        study.add(chosen(point.number, point.parameters))
    for point in sorted(points, key=lambda each: -each.number):
        if point.end is not None:
            study.report(point.number, point.end.curve)
            study.end(point.number, point.end.ending, float(point.end.value))
    assert study.choose(lambda _: False) == first[0]


def test_it_is_what_optuna_suggests_itself():
    table = asked()
    points = mixed(table, 14)
    space = {
        "lr": optuna.distributions.FloatDistribution(1e-5, 1e-1, log=True),
        "layers": optuna.distributions.IntDistribution(1, 8),
        "act": optuna.distributions.CategoricalDistribution(("relu", "gelu", "silu")),
    }
    states = optuna.trial.TrialState
    of = {
        PointEnding.COMPLETED: states.COMPLETE,
        PointEnding.FAILED: states.FAIL,
        PointEnding.STOPPED_EARLY: states.PRUNED,
    }
    seed = tune_study.seed_of(0, len(points) + 1)
    direct = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, constant_liar=True))
    for point in points:
        params = {
            "lr": float(point.parameters["lr"]), "layers": int(point.parameters["layers"]), "act": point.parameters["act"],
        }  # fmt: skip
        state = states.RUNNING if point.end is None else of[point.end.ending]
        value = float(point.end.value) if state is states.COMPLETE and point.end else None
        direct.add_trial(optuna.trial.create_trial(state=state, value=value, params=params, distributions=space))
    found = direct.ask(space).params
    mine = rebuilt(table, points).choose(lambda _: False)
    assert mine == {"lr": table.space["lr"].text(found["lr"]), "layers": str(found["layers"]), "act": found["act"]}


def test_no_point_is_chosen_twice_and_a_small_space_is_used_up():
    table = asked({"a": {"values": [1, 2, 3]}, "b": {"from": 1, "to": 4}}, points=12)
    study, seen = TuneStudy(table), []
    for number in range(1, 13):
        found = study.choose(lambda point: point in seen)
        assert found is not None
        assert found not in seen
        seen.append(found)
        study.add(chosen(number, found, PointEnding.COMPLETED, float(found["a"])))
    assert study.choose(lambda point: point in seen) is None


def test_hyperband_stops_what_lags_behind_as_optuna_does():
    """Jobs one after the other, each with a constant loss: the ones of Optuna's own loop are stopped after as many values."""
    table = asked(SQUARE, method="hyperband", steps=27)
    losses = [0.5, 0.9, 0.4, 0.8, 0.3, 0.7, 0.95, 0.2, 0.6, 0.85, 0.1, 0.99] * 2
    pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=27, reduction_factor=3)
    direct = optuna.create_study(
        study_name=tune_study.NAME, pruner=pruner, sampler=optuna.samplers.RandomSampler(seed=1)
    )
    study, ours, theirs = TuneStudy(table), [], []
    for number, value in enumerate(losses, 1):
        trial = direct.ask()
        for step in range(1, 27):  # the last value ends a job anyway
            trial.report(value, step)
            if trial.should_prune():
                break
        theirs.append(step)
        direct.tell(trial, value) if step == 26 else direct.tell(trial, state=optuna.trial.TrialState.PRUNED)

        study.add(chosen(number, study.choose(lambda _: False)))
        told = {}
        for step in range(1, 27):
            told[step] = value
            if study.report(number, told):
                break
        ours.append(step)
        study.end(number, PointEnding.COMPLETED if step == 26 else PointEnding.STOPPED_EARLY, value)
    assert ours == theirs
    assert 1 <= sum(step < 26 for step in ours) < len(losses)
    assert {step for step in ours if step < 26} <= set(table.looks)


@pytest.mark.parametrize("method", ["random", "bayesian"])
def test_the_median_stops_what_optuna_s_own_rule_stops(method):
    """Curves that cross, of jobs one after the other: those of Optuna's own loop are stopped after as many values."""
    table = asked(SQUARE, method=method, stop="median", steps=10)
    pruner = optuna.pruners.MedianPruner()
    direct = optuna.create_study(pruner=pruner, sampler=optuna.samplers.RandomSampler(seed=1))
    study, ours, theirs = TuneStudy(table), [], []
    for number in range(1, 25):
        curve = {step: (number * 7 % 12) / step + (number * 5 % 11) * step / 10 for step in range(1, 10)}
        trial = direct.ask()
        for step, value in curve.items():
            trial.report(value, step)
            if trial.should_prune():
                break
        theirs.append(step)
        direct.tell(trial, curve[9]) if step == 9 else direct.tell(trial, state=optuna.trial.TrialState.PRUNED)

        study.add(chosen(number, study.choose(lambda _: False)))
        for step in curve:
            told = {each: curve[each] for each in range(1, step + 1)}
            if study.report(number, told):
                break
        ours.append(step)
        study.end(number, PointEnding.COMPLETED if step == 9 else PointEnding.STOPPED_EARLY, curve[step])
    assert ours == theirs
    assert ours[:5] == [9] * 5, "five have to end before there is a median"
    assert 3 < sum(step < 9 for step in ours) < 19
    assert len({step for step in ours if step < 9}) > 1


def test_a_point_outside_of_the_space_is_one_error():
    with pytest.raises(
        UserError, match="point 1 of the tuning is lr=7, layers=1, act=relu: 7 is not in 1e-05 to 0.1; fix: --force"
    ):
        TuneStudy(asked()).add(chosen(1, {"lr": "7", "layers": "1", "act": "relu"}))
    with pytest.raises(UserError, match="'tanh' is none of relu, gelu, silu"):
        TuneStudy(asked()).add(chosen(1, {"lr": "1e-3", "layers": "1", "act": "tanh"}))


def test_without_optuna_one_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(tune_study, "find_spec", lambda _: None)
    with pytest.raises(
        UserError, match=r"w: optuna, which chooses the points, is not installed; fix: .* install .*optuna"
    ):
        tune_study.need_optuna("w")


def test_optuna_is_loaded_for_a_study_alone():
    import subprocess

    code = "import sys, algorun_client.commands.main, algorun_client.submit.chain.submit_all; print('optuna' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def regret(method: str, seed: int, points: int) -> float:
    """How far the best of the points is from the lowest loss. Results come in the order of the points, two jobs at a time."""
    table = asked(SQUARE, method=method, seed=seed)
    study = TuneStudy(table)
    best, waiting = math.inf, []
    for number in range(1, points + 1):
        found = study.choose(lambda _: False)
        study.add(chosen(number, found))
        waiting.append((number, loss(found)))
        if len(waiting) == 2 or number == points:
            done, value = waiting.pop(0)
            study.end(done, PointEnding.COMPLETED, value)
        best = min(best, loss(found))
    return best


def grid_regret(begin: float) -> float:
    """The same of a grid of 6 x 5 points, whose first point lies `begin` of a cell from the corner."""
    rates = [10 ** (-5 + 4 * (n + begin) / 6) for n in range(6)]
    places = [-1 + 2 * (n + begin) / 5 for n in range(5)]
    return min(loss({"lr": lr, "x": x}) for lr, x in itertools.product(rates, places))


@pytest.mark.slow
def test_after_thirty_points_bayesian_is_nearer_than_random_and_a_grid():
    seeds = range(15)
    bayesian = median(regret("bayesian", seed, 30) for seed in seeds)
    random = median(regret("random", seed, 30) for seed in seeds)
    grid = median(grid_regret(n / 15) for n in seeds)
    print(f"regret after 30 points: bayesian {bayesian:.4f}, random {random:.4f}, grid {grid:.4f}")
    assert bayesian < random / 2
    assert bayesian < grid / 2
