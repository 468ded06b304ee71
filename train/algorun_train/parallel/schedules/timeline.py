"""Event simulation of a schedule: a rank computes its actions one after the other, each once its inputs are there."""

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
        """From the first action's begin to the last one's end, over all ranks."""
        return self.end_s - self.begin_s

    @property
    def bubbles(self) -> tuple[float, ...]:
        """The share of the step that each rank computes nothing in."""
        whole = self.step_s
        return tuple(1 - sum(s.end_s - s.begin_s for s in spans) / whole if whole else 0.0 for spans in self.ranks)

    @property
    def bubble(self) -> float:
        """The idle share of all ranks together."""
        return sum(self.bubbles) / len(self.ranks)


class Simulator:
    """Runs one set of orders under many costs: dependencies are sorted once, a run is one pass over the actions."""

    def __init__(self, orders: Orders) -> None:
        """ValueError where the orders wait for each other for ever."""
        self._orders = orders
        self._stages = 1 + max(action.stage for order in orders for action in order)
        self.length = sum(map(len, orders))
        # (rank, kind, stage, place of the needed action or -1, whether it comes from another rank)
        self._sorted: list[tuple[int, str, int, int, bool]] = []
        self._places: list[list[int]] = [[] for _ in orders]
        self._sort()

    def _sort(self) -> None:
        done: dict[Action, tuple[int, int]] = {}  # the place and rank of outputs that exist
        waiting: dict[Action, int] = {}  # the rank that waits for an output
        ready = list(range(len(self._orders)))
        while ready:
            rank = ready.pop()
            order, places = self._orders[rank], self._places[rank]
            while len(places) < len(order):
                action = order[len(places)]
                needed = self._needs(action)
                place, owner = done.get(needed, (-1, rank)) if needed else (-1, rank)
                if needed and place < 0:
                    waiting[needed] = rank
                    break
                here = len(self._sorted)
                self._sorted.append((rank, action.kind, action.stage, place, owner != rank))
                places.append(here)
                output = action._replace(kind="I") if action.kind == "B" else action
                done[output] = here, rank
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

    def _ends(self, costs: dict[str, list[float]], send_s: float) -> list[float]:
        ends: list[float] = []
        free = [0.0] * len(self._orders)
        for rank, kind, stage, place, sent in self._sorted:
            begin = free[rank]
            if place >= 0:
                arrival = ends[place] + send_s if sent else ends[place]
                if arrival > begin:
                    begin = arrival
            free[rank] = end = begin + costs[kind][stage]
            ends.append(end)
        return ends

    def step_s(self, forward_s: Sequence[float], backward_s: Sequence[float], send_s: float = 0.0) -> float:
        return max(self._ends(self._costs(forward_s, backward_s), send_s))

    def timeline(self, forward_s: Sequence[float], backward_s: Sequence[float], send_s: float = 0.0) -> Timeline:
        costs = self._costs(forward_s, backward_s)
        ends = self._ends(costs, send_s)
        ranks = []
        for order, places in zip(self._orders, self._places, strict=True):
            pairs = zip(order, places, strict=True)
            ranks.append(tuple(Span(a, ends[p] - costs[a.kind][a.stage], ends[p]) for a, p in pairs))
        return Timeline(tuple(ranks))


def simulate(orders: Orders, forward_s: Sequence[float], backward_s: Sequence[float], send_s: float = 0.0) -> Timeline:
    """The step that `orders` give. Costs are per stage and microbatch; `send_s` is the way between two ranks.

    A backward pass split in I and W costs half of it each, except on the first stage. Sends cost no computation.
    """
    return Simulator(orders).timeline(forward_s, backward_s, send_s)


def held(orders: Orders, sizes: Sequence[int]) -> tuple[int, ...]:
    """The most that each rank holds at once, where a microbatch in flight through stage s counts `sizes[s]`.

    Activations live from F to B, and to W where the backward pass is split.
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


def in_flight(orders: Orders) -> tuple[int, ...]:
    """The most microbatches, counted once per stage, whose activations each rank holds at once."""
    return held(orders, [1] * _stages(orders))


def held_by_stage(orders: Orders) -> tuple[int, ...]:
    """The most microbatches in flight through each stage."""
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
