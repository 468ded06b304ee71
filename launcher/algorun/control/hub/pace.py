"""Whether a rank holds the others up, from what all hosts report in a while. Pure."""

from __future__ import annotations

from algorun.common.fast_dataclasses import replace
from algorun.control.failures.failure import listed
from algorun.control.wire.messages import Pace, Verdict
from algorun.timing.rank_times import RankTimes
from algorun.timing.slowness import CORE, Slow, excesses, slow_ranks

IN_A_ROW = 3  # windows in which a rank must be slow: a shorter one is an accident
SLOW = "slow: "  # how the line about slow ranks begins
LEAST_S = 5.0  # seconds that the judgement at the end must have seen: less is an accident
LEAST_ABOVE = 0.01  # of the time: what a rank spends less than this above the others is not said
MOST_ABOVE = 3  # ranks and activities that are said


class Paces:
    """The reports of the attempt that runs. A window ends once all of its ranks have reported anew."""

    def __init__(self) -> None:
        self._attempt = 0
        self._clear()

    def _clear(self) -> None:
        self._before: dict[int, RankTimes] = {}
        self._after: dict[int, RankTimes] = {}
        self._hosts: dict[int, str] = {}
        self._begins: list[dict[int, RankTimes]] = []  # of the first window, and of the last ones
        self._slow: list[Slow] = []  # in the last windows, one after the other
        self._said: set[int] = set()
        self._lines: list[str] = []

    def heard(self, host: str, pace: Pace, attempt: int, ranks: int) -> str:
        """A host's report. `attempt` is the one that runs; it has this many `ranks`.

        Returns a line about slow ranks where one is due: once for each rank and attempt.
        """
        if pace.attempt != attempt:
            return ""
        if attempt != self._attempt:
            self._attempt = attempt
            self._clear()
        for each in pace.ranks:
            self._after[each.rank] = each
            self._hosts[each.rank] = host
        if len(self._after) < ranks:
            return ""
        before, after = self._before, self._after
        self._before, self._after = after, {}
        if before.keys() != after.keys():
            return ""
        self._begins = [*self._begins[:1], *self._begins[1:][-IN_A_ROW + 1 :], before]
        return self._judge(slow_ranks(before, after))

    def add_to(self, verdict: Verdict, attempt: int) -> Verdict:
        """The verdict, with what the reports say at the job's end, after this attempt."""
        if attempt != self._attempt:  # it has reported nothing
            return verdict
        return replace(verdict, slow=self.at_the_end(), above=self.above_at_the_end())

    def at_the_end(self) -> str:
        """The line about who was slow in the last attempt: in all of it, in the last windows, or at least for a while.

        On a busy host chance decides who finds a core, so a lack of cores counts only after several windows in a row.
        """
        first, last = self._begins[:1], self._begins[1:2] if len(self._begins) > IN_A_ROW else []
        for begin in (*first, *last):
            if self._long_enough(begin):
                slow = slow_ranks(begin, self._before)
                if slow is not None and (slow.activity != CORE or self._said.issuperset(slow.ranks)):
                    return self._line(sorted(slow.ranks), slow)
        return self._lines[-1] if self._lines else ""

    def above_at_the_end(self) -> str:
        """What ranks spent more on than the others in all of the last attempt, for people to look at; "" if nothing shows."""
        if not self._begins or not self._long_enough(self._begins[0]):
            return ""
        found = [each for each in excesses(self._begins[0], self._before) if each.share >= LEAST_ABOVE][:MOST_ABOVE]
        return ", ".join(f"rank {each.rank} in {each.activity} {each.share:.1%} of the time" for each in found)

    def _long_enough(self, begin: dict[int, RankTimes]) -> bool:
        return all(self._before[rank].at - times.at >= LEAST_S for rank, times in begin.items())

    def _judge(self, slow: Slow | None) -> str:
        if slow is None:
            self._slow.clear()
            return ""
        self._slow = [*self._slow, slow][-IN_A_ROW:]
        always = sorted(set.intersection(*(set(each.ranks) for each in self._slow)))
        if not always:
            self._slow = [slow]
        if len(self._slow) < IN_A_ROW or self._said.issuperset(always):
            return ""
        self._said.update(always)
        self._lines.append(self._line(always, slow))
        return self._lines[-1]

    def _line(self, ranks: list[int], slow: Slow) -> str:
        hosts = listed(sorted({self._hosts[rank] for rank in ranks}))
        one = len(ranks) == 1
        return (
            f"{SLOW}{'rank' if one else 'ranks'} {listed([str(rank) for rank in ranks])} on {hosts}: "
            f"{'its' if one else 'their'} own work takes {slow.factor:.1f} x the others' time, most of the excess in "
            f"{slow.activity}; the others wait {slow.waited:.0%} of the time"
        )
