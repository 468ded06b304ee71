"""Event simulation of a schedule: a rank computes its actions in order, each as soon as its inputs have arrived.

Sending takes no time: what a microbatch sends is small beside what it computes, and is sent while ranks compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .slots import Action

Orders = Sequence[Sequence[Action]]


class Span(NamedTuple):
    """When a rank computed an action, planned or measured, in seconds from any common zero."""

    action: Action
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The spans of every pipeline rank in one step, planned or measured."""

    ranks: tuple[tuple[Span, ...], ...]

    @property
    def begin_s(self) -> float:
        return min((span.begin_s for spans in self.ranks for span in spans), default=0.0)

    @property
    def end_s(self) -> float:
        return max((span.end_s for spans in self.ranks for span in spans), default=0.0)

    @property
    def step_s(self) -> float:
        """Seconds from the begin of the first action to the end of the last, over all ranks."""
        return self.end_s - self.begin_s

    @property
    def bubbles(self) -> tuple[float, ...]:
        """For each rank the share of the step in which it computes nothing."""
        whole = self.step_s
        return tuple(1 - sum(s.end_s - s.begin_s for s in spans) / whole if whole else 0.0 for spans in self.ranks)

    @property
    def bubble(self) -> float:
        """The share of the step in which ranks compute nothing, of all ranks together."""
        return sum(self.bubbles) / len(self.ranks)


class Simulator:
    """Runs one set of orders under many costs: dependencies are sorted once, a run is one pass over the actions."""

    def __init__(self, orders: Orders) -> None:
        """Raises ValueError if ranks wait for each other for ever."""
        self._orders = orders
        self._stages = 1 + max(action.stage for order in orders for action in order)
        self.length = sum(map(len, orders))
        # (rank, kind, stage, place of the needed action or -1)
        self._sorted: list[tuple[int, str, int, int]] = []
        self._places: list[list[int]] = [[] for _ in orders]
        self._sort()

    def _sort(self) -> None:
        done: dict[Action, int] = {}  # the place of outputs that exist
        waiting: dict[Action, int] = {}  # the rank that waits for an output
        ready = list(range(len(self._orders)))
        while ready:
            rank = ready.pop()
            order, places = self._orders[rank], self._places[rank]
            while len(places) < len(order):
                action = order[len(places)]
                needed = self._needs(action)
                place = done.get(needed, -1) if needed else -1
                if needed and place < 0:
                    waiting[needed] = rank
                    break
                here = len(self._sorted)
                self._sorted.append((rank, action.kind, action.stage, place))
                places.append(here)
                output = action._replace(kind="I") if action.kind == "B" else action
                done[output] = here
                if output in waiting:
                    ready.append(waiting.pop(output))
        if len(self._sorted) < self.length:
            stuck = [str(o[len(p)]) for o, p in zip(self._orders, self._places, strict=True) if len(p) < len(o)]
            raise ValueError(f"the schedule waits for ever; next of the ranks that wait: {', '.join(stuck)}")

    def _needs(self, action: Action) -> Action | None:
        """The action whose output this one needs; those that the rank's own order guarantees count as well."""
        kind, stage, microbatch = action
        if kind == "F":
            return Action("F", stage - 1, microbatch) if stage else None
        if kind == "W":
            return Action("I", stage, microbatch)
        return Action("I", stage + 1, microbatch) if stage + 1 < self._stages else Action("F", stage, microbatch)

    def _costs(self, forward_s: Sequence[float], backward_s: Sequence[float]) -> dict[str, list[float]]:
        # torch leaves the first stage's input gradient out and does its whole backward in W.
        inner = [0.0 if stage == 0 else cost / 2 for stage, cost in enumerate(backward_s)]
        weight = [cost - part for cost, part in zip(backward_s, inner, strict=True)]
        return {"F": list(forward_s), "B": list(backward_s), "I": inner, "W": weight}

    def _ends(self, costs: dict[str, list[float]]) -> list[float]:
        ends: list[float] = []
        free = [0.0] * len(self._orders)
        for rank, kind, stage, place in self._sorted:
            begin = free[rank]
            if place >= 0 and ends[place] > begin:
                begin = ends[place]
            free[rank] = end = begin + costs[kind][stage]
            ends.append(end)
        return ends

    def step_s(self, forward_s: Sequence[float], backward_s: Sequence[float]) -> float:
        """Seconds of a step whose stages take these seconds per microbatch."""
        return max(self._ends(self._costs(forward_s, backward_s)))

    def timeline(self, forward_s: Sequence[float], backward_s: Sequence[float]) -> Timeline:
        """The whole step; costs as in `step_s`."""
        costs = self._costs(forward_s, backward_s)
        ends = self._ends(costs)
        ranks = []
        for order, places in zip(self._orders, self._places, strict=True):
            pairs = zip(order, places, strict=True)
            ranks.append(tuple(Span(a, ends[p] - costs[a.kind][a.stage], ends[p]) for a, p in pairs))
        return Timeline(tuple(ranks))


def simulate(orders: Orders, forward_s: Sequence[float], backward_s: Sequence[float]) -> Timeline:
    """One step of these orders. Costs are seconds of each stage for one microbatch.

    A backward pass that is split in I and W costs half of it each, except on the first stage, whose W is all of it.
    """
    return Simulator(orders).timeline(forward_s, backward_s)


def peak_sizes(orders: Orders, sizes: Sequence[int]) -> tuple[int, ...]:
    """The largest size of each rank at any moment, where a microbatch in flight through stage s has the size `sizes[s]`.

    A microbatch is in flight from F to B, or to W where the backward pass is split.
    """
    peaks = []
    for order in orders:
        now = peak = 0
        for kind, stage, _ in order:
            if kind == "F":
                now += sizes[stage]
                peak = max(peak, now)
            elif kind in "BW":
                now -= sizes[stage]
        peaks.append(peak)
    return tuple(peaks)


def in_flight_by_stage(orders: Orders) -> tuple[int, ...]:
    """The largest number of microbatches in flight through each stage."""
    now = [0] * _stages(orders)
    peak = list(now)
    for order in orders:  # a stage is on one rank only
        for kind, stage, _ in order:
            if kind == "F":
                now[stage] += 1
                peak[stage] = max(peak[stage], now[stage])
            elif kind in "BW":
                now[stage] -= 1
    return tuple(peak)


def _stages(orders: Orders) -> int:
    return 1 + max(action.stage for order in orders for action in order)
