"""What ranks did over time, as data for the page's script: a map of ranks x time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from algorun.timing.slowness import NOT_OWN, OTHER
from algorun_report.run_report import HostWindows, ReportedActivities
from algorun_report.thinning import merge_windows

MOST_RANKS = 512  # rows: more have no pixel of their own
MOST_WINDOWS = 600  # of a rank: two pixels each on a wide screen
MOST_VALUES = 300_000  # on the page: three bytes each
FEWEST_WINDOWS = 20
EXPLAINED = {
    "data": "waiting for a batch",
    "exchange": "waiting for other ranks, talking to them",
    "saving": "saving a checkpoint",
}
OWN = "own work", f"all but {' and '.join(NOT_OWN)}"


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The map of a job. `names`: the activities that are seen; shares are whole percents."""

    names: tuple[str, ...]
    hosts: tuple[HostWindows, ...]
    merged: int  # the most reports that are drawn as one
    ranks_left_out: int

    @property
    def note(self) -> str:
        """What the reader must know to read the map rightly, "" for nothing."""
        notes = []
        if self.merged > 1:
            notes.append(f"up to {self.merged} reports of a host are drawn as one, with their mean")
        if self.ranks_left_out:
            drawn = sum(len(host.ranks) for host in self.hosts)
            notes.append(f"the first {drawn} of {drawn + self.ranks_left_out} ranks are drawn")
        return "; ".join(notes)

    def data(self) -> dict[str, object]:
        """For JSON. `shares[r][a][w]`: the percents of rank r in activity a and window w.

        The script shows no work of its own where a host made no step, as after the last one.
        """
        return {
            "names": self.names,
            "aside": [name for name in self.names if name in NOT_OWN],
            "hosts": [
                {
                    "host": host.host,
                    "ranks": host.ranks,
                    "begin": [round(each.begin, 2) for each in host.windows],
                    "end": [round(each.end, 2) for each in host.windows],
                    "steps": [each.steps for each in host.windows],
                    "shares": [
                        [[round(100 * each.shares[rank][at]) for each in host.windows] for at in range(len(self.names))]
                        for rank in range(len(host.ranks))
                    ],
                }
                for host in self.hosts
            ],
        }

    @property
    def choices(self) -> list[tuple[str, str]]:
        """What a reader may look at: a name, and what it means."""
        return [OWN, *((name, EXPLAINED.get(name, "")) for name in self.names), (OTHER, "")]


def heat_map(activities: ReportedActivities) -> HeatMap | None:
    """The map, with fewer rows and windows where a screen could not show more. None if nothing was seen."""
    seen = [
        at
        for at, _ in enumerate(activities.names)
        if any(rank[at] for host in activities.hosts for each in host.windows for rank in each.shares)
    ]
    if not seen:
        return None
    hosts, left_out = _first_ranks(activities.hosts)
    rows = sum(len(host.ranks) for host in hosts)
    most = max(FEWEST_WINDOWS, min(MOST_WINDOWS, MOST_VALUES // (rows * len(seen))))
    count = max(-(-len(host.windows) // most) for host in hosts)
    drawn = tuple(HostWindows(host.host, host.ranks, tuple(merge_windows(host.windows, count, seen))) for host in hosts)
    merged = max(each.reports for host in drawn for each in host.windows)
    return HeatMap(tuple(activities.names[at] for at in seen), drawn, merged, left_out)


def _first_ranks(hosts: Sequence[HostWindows]) -> tuple[list[HostWindows], int]:
    """Hosts with at most MOST_RANKS ranks together, and how many ranks are left out."""
    found: list[HostWindows] = []
    room, left_out = MOST_RANKS, 0
    for host in hosts:
        if len(host.ranks) <= room:
            found.append(host)
            room -= len(host.ranks)
        else:
            left_out += len(host.ranks)
            room = 0
    return found, left_out
