"""One collective call of a rank, as its flight recorder notes it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from algorun.common.fast_dataclasses import dataclass

LONGEST_MEMBERS = 400  # characters


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One collective call of a rank: call `number` of the process group `group` (such as `gloo:0`), at `file`:`line` of the user's code.

    `members` are the group's ranks, such as `0-7`, `1-13:4` (every 4th) or `0,2,3`; "" where unknown. `shapes` are those
    of the tensors that the rank brought, such as `[[3, 4]]`. `state` is that of its work on a GPU: scheduled, started or
    completed; "" where the recorder does not follow it (gloo).
    """

    group: str
    number: int
    operation: str
    members: str = ""
    shapes: str = ""
    dtypes: str = ""
    file: str = ""
    line: int = 0
    state: str = ""

    def __str__(self) -> str:
        shapes = self.shapes[1:-1] if self.shapes != "[]" else ""
        what = " ".join(part for part in (self.operation, shapes, self.dtypes) if part)
        return f"{what} at {self.file.rsplit('/', 1)[-1]}:{self.line}" if self.file else what

    @property
    def is_over(self) -> bool:
        """True where its work is known to have completed."""
        return self.state == "completed"

    @property
    def place(self) -> str:
        name = self.group.partition(":")[2]
        if name == "0":
            return f"call {self.number} of the default group"
        members = f" of ranks {self.members}" if self.members else ""
        return f"call {self.number} of group {name}{members}"


def nearest(calls: Sequence[CollectiveCall], most: int) -> tuple[CollectiveCall, ...]:
    """At most `most` calls, in their order: of each group those around the first that has not completed, else the newest."""
    groups: dict[tuple[str, str], list[int]] = {}
    for index, call in enumerate(calls):
        groups.setdefault((call.group, call.members), []).append(index)
    far: dict[int, int] = {}
    for indexes in groups.values():
        open_calls = (n for n, index in enumerate(indexes) if calls[index].state and not calls[index].is_over)
        middle = next(open_calls, len(indexes) - 1)
        far.update((index, abs(n - middle)) for n, index in enumerate(indexes))
    kept = sorted(far, key=lambda index: (far[index], -index))[:most]
    return tuple(calls[index] for index in sorted(kept))
