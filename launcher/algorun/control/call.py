"""One collective call of a rank, as its flight recorder notes it. Pure."""

from __future__ import annotations

from algorun.common.fast_dataclasses import dataclass

LONGEST_MEMBERS = 400  # characters


@dataclass(frozen=True, slots=True)
class Call:
    """One collective call of a rank: call `number` of the process group `group` (such as `gloo:0`), at `file`:`line` of the user's code.

    `members` are the group's ranks, such as `0-7`, `1-13:4` (every 4th) or `0,2,3`; "" where unknown. `shapes` are those
    of the tensors that the rank brought, such as `[[3, 4]]`.
    """

    group: str
    number: int
    operation: str
    members: str = ""
    shapes: str = ""
    dtypes: str = ""
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        shapes = self.shapes[1:-1] if self.shapes != "[]" else ""
        what = " ".join(part for part in (self.operation, shapes, self.dtypes) if part)
        return f"{what} at {self.file.rsplit('/', 1)[-1]}:{self.line}" if self.file else what

    @property
    def place(self) -> str:
        name = self.group.partition(":")[2]
        if name == "0":
            return f"call {self.number} of the default group"
        members = f" of ranks {self.members}" if self.members else ""
        return f"call {self.number} of group {name}{members}"
