"""What a partition costs under a schedule, and the search for the cheapest one."""

import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from algorun_train.errors import UserError
from algorun_train.parallel import schedules

from .bound import Bound
from .memory import Memory, StageBytes, rank_bytes, stage_bytes
from .minmax import Cuts, Loads
from .repeats import Repeats
from .search import Begins, search

ACTIONS = 2_000_000  # simulated in one search; about two seconds
EXACT = ("gpipe", "1f1b")  # one stage a rank, step sum t_s + (M - 1) max t_s


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of a model between two places where it can be cut, and what one microbatch costs in it."""

    name: str
    units: tuple[str, ...]
    forward_s: float
    backward_s: float
    saved_bytes: int
    """kept from the forward to the backward pass, without weights and what the segment before has counted"""
    parameter_bytes: int
    boundary_bytes: int
    """what enters the segment, if it comes from another rank"""
    shared: tuple[tuple[str, int], ...] = ()
    """weights that other segments use as well, with their bytes, which are in `parameter_bytes`: a stage, or a rank, has
    each once"""


@dataclass(frozen=True, slots=True)
class Decision:
    """Where stages begin, and what that is predicted to cost. Seconds are per microbatch, `step_s` is a whole step."""

    begins: Begins
    """index of each stage's first segment"""
    ranks: tuple[int, ...]
    """the pipeline rank of each stage"""
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    parameter_bytes: tuple[int, ...]
    in_flight: tuple[int, ...]
    """the most microbatches that each stage holds activations of"""
    stage_bytes: tuple[int, ...]
    rank_bytes: tuple[int, ...]
    """a rank's stages do not peak together, so this is at most the sum over them"""
    step_s: float
    bubble: float


class Partitioner:
    """Finds and judges partitions of `segments` over pipeline ranks under one schedule."""

    def __init__(
        self,
        segments: Sequence[Segment],
        ranks: int,
        chunks: int,
        microbatches: int,
        schedule: str,
        memory: Memory = Memory(),  # noqa: B008 (frozen)
        send_s: float = 0.0,
    ) -> None:
        """UserError where the schedule forbids the numbers, or there are more stages than segments."""
        self._segments, self._ranks, self._chunks, self._microbatches = segments, ranks, chunks, microbatches
        self._name, self._memory, self._send_s = schedules.ALIASES.get(schedule, schedule), memory, send_s
        self.stages = ranks * chunks
        self._orders = schedules.orders(schedule, ranks, chunks, microbatches)
        self._owners = schedules.rank_of(schedule, ranks, chunks)
        if self.stages > len(segments):
            raise UserError(
                f"{ranks} pipeline ranks x {chunks} stages need {self.stages} segments; allowed: at most "
                f"{len(segments)}, the segments that this model can be cut into; fix: fewer ranks, or fewer stages "
                "per rank"
            )
        self._in_flight = schedules.held_by_stage(self._orders)
        # of how many microbatches a stage holds all activations at once
        self._in_full = [1 if memory.recompute else many for many in self._in_flight]
        self._states = [memory.states(s.parameter_bytes) for s in segments]
        self._repeats = Repeats(segments)
        again = [s.forward_s if memory.recompute else 0.0 for s in segments]  # within the backward pass
        sums = ([s.forward_s for s in segments], [s.backward_s + more for s, more in zip(segments, again, strict=True)])
        self._forward, self._backward = (list(itertools.accumulate(values, initial=0.0)) for values in sums)
        self._bound = Bound(self._repeats.once(self._states, memory), [s.saved_bytes for s in segments])
        self._sum_states = list(itertools.accumulate(self._states, initial=0))
        self._sum_saved = list(itertools.accumulate((s.saved_bytes for s in segments), initial=0))

    @functools.cached_property
    def _simulator(self) -> schedules.Simulator:
        return schedules.Simulator(self._orders)

    def decide(self, begins: Sequence[int]) -> Decision:
        """What a given partition costs."""
        cut, stages = tuple(begins), self._stages(begins)
        forward, backward = self._times(begins)
        timeline = self._simulator.timeline(forward, backward, self._send_s)
        ends = [*cut[1:], len(self._segments)]
        sizes = (
            sum(s.parameter_bytes for s in self._segments[begin:end]) - sum(self._repeats.within(begin, end))
            for begin, end in zip(cut, ends, strict=True)
        )
        return Decision(
            begins=cut,
            ranks=self._owners,
            forward_s=tuple(forward),
            backward_s=tuple(backward),
            parameter_bytes=tuple(sizes),
            in_flight=self._in_flight,
            stage_bytes=stage_bytes(stages, self._orders),
            rank_bytes=self._rank_bytes(begins),
            step_s=timeline.step_s,
            bubble=timeline.bubble,
        )

    def solve(self, optimize: str = "speed", limit_bytes: int | None = None) -> Decision | None:
        """The best partition whose ranks need at most `limit_bytes`; None where none is found."""
        if optimize not in ("speed", "memory"):
            raise UserError(f"option --optimize: {optimize!r}; allowed: speed, memory; fix: choose one of them")
        if limit_bytes is not None and not self._bound.may_fit(self._in_full, limit_bytes):
            return None
        if self._name in EXACT:
            cuts = self._cuts()
            begins = cuts.fastest(limit_bytes) if optimize == "speed" else cuts.smallest()
        else:
            begins = self._search(optimize, limit_bytes)
        if begins is None:
            return None
        decision = self.decide(begins)
        return decision if limit_bytes is None or max(decision.rank_bytes) <= limit_bytes else None

    def fits(self, limit_bytes: int) -> bool:
        """Whether a partition whose ranks need at most `limit_bytes` is found."""
        if not self._bound.may_fit(self._in_full, limit_bytes):
            return False
        if self._name in EXACT:
            return self._cuts().fits_within(limit_bytes)
        start = self._cuts().smallest()
        assert start is not None  # there are as many segments as stages

        def over(begins: Begins) -> tuple[float, ...]:
            return (max(0, max(self._rank_bytes(begins)) - limit_bytes),)

        actions = sum(map(len, self._orders))
        return over(start) == (0,) or over(
            search(over, [start], len(self._segments), max(1, ACTIONS // 10 // actions))
        ) == (0,)

    def too_large(self, limit_bytes: int) -> tuple[Segment, int] | None:
        """A segment that is over the limit in whatever stage, with the fewest bytes it needs (buffers left out: with
        others in its stage it may have smaller ones)."""
        least = min(self._in_full)
        for segment, states in zip(self._segments, self._states, strict=True):
            size = states + least * segment.saved_bytes
            if size > limit_bytes:
                return segment, size
        return None

    def _cuts(self) -> Cuts:
        segments = self._segments
        loads = Loads(
            time=[round((s.forward_s * (1 + self._memory.recompute) + s.backward_s) * 1e9) for s in segments],
            states=self._states,
            saved=[s.saved_bytes for s in segments],
            entry=[self._memory.buffers(s.boundary_bytes, 0, self._microbatches) for s in segments],
            kept=[self._memory.kept(s.boundary_bytes) for s in segments] if self._memory.recompute else None,
            repeats=[(one, two, self._memory.states(size)) for one, two, size in self._repeats.pairs],
        )
        return Cuts(loads, self._in_flight)

    def _search(self, optimize: str, limit: int | None) -> Begins:
        cuts = self._cuts()
        starts = [cut for cut in (cuts.fastest(), cuts.smallest()) if cut is not None]

        def cost(begins: Begins) -> tuple[float, ...]:
            forward, backward = self._times(begins)
            largest = 0
            if optimize == "memory" or limit is not None:
                largest = max(self._rank_bytes(begins))
            over = 0 if limit is None else max(0, largest - limit)
            step = self._simulator.step_s(forward, backward, self._send_s)
            spread = sum((f + b) ** 2 for f, b in zip(forward, backward, strict=True))
            return (over, largest, step, spread) if optimize == "memory" else (over, step, spread)

        return search(cost, starts, len(self._segments), max(1, ACTIONS // self._simulator.length))

    def _times(self, begins: Sequence[int]) -> tuple[list[float], list[float]]:
        ends = [*begins[1:], len(self._segments)]
        pairs = list(zip(begins, ends, strict=True))
        return (
            [self._forward[end] - self._forward[begin] for begin, end in pairs],
            [self._backward[end] - self._backward[begin] for begin, end in pairs],
        )

    def _stages(self, begins: Sequence[int]) -> list[StageBytes]:
        ends = [*begins[1:], len(self._segments)]
        return [self._stage(begin, end) for begin, end in zip(begins, ends, strict=True)]

    def _rank_bytes(self, begins: Sequence[int]) -> tuple[int, ...]:
        """Bytes of each rank at its peak. A weight that several of its stages use is there once."""
        found = list(rank_bytes(self._stages(begins), self._orders))
        for _, stages, size in self._repeats.of_stages(begins):
            for rank, many in Counter(self._owners[stage] for stage in stages).items():
                found[rank] -= (many - 1) * self._memory.states(size)
        return tuple(found)

    def _stage(self, begin: int, end: int) -> StageBytes:
        states, buffers = self._sum_states[end] - self._sum_states[begin], self._buffers(begin, end)
        states -= sum(map(self._memory.states, self._repeats.within(begin, end)))
        saved = self._sum_saved[end] - self._sum_saved[begin]
        if not self._memory.recompute:
            return StageBytes(states, buffers, saved)
        entry = self._segments[begin].boundary_bytes if begin else 0  # the first stage's is in the batch
        return StageBytes(states, buffers, self._memory.kept(entry), again=saved)

    def _buffers(self, begin: int, end: int) -> int:
        """Neither the model's input nor its output is received."""
        entry = self._segments[begin].boundary_bytes if begin else 0
        leaving = self._segments[end].boundary_bytes if end < len(self._segments) else 0
        return self._memory.buffers(entry, leaving, self._microbatches)
