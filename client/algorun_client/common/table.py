"""A table for people: whole where it is piped, and never wider than the terminal that shows it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from algorun.common.plain_text import plain

GAP = "  "  # between columns; a row of several lines has it before all but the first
LEAST_CUT = 24  # columns that are left of a text without its middle: enough to know a job by its two ends
ELLIPSIS = "…"
SPACES = str.maketrans("\n\t", "  ")

Row = Sequence[str]


def write(heads: Row, rows: Sequence[Row], cut: int) -> None:
    """Prints a table. `cut`: the number of the column whose texts lose their middle on a terminal that is too narrow."""
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    cells = [[plain(cell).translate(SPACES) for cell in row] for row in rows]
    head, lines = fitted(heads, cells, cut, console.width if sys.stdout.isatty() else None)
    if head:
        console.print(Text(head, style="bold"))
    for line in lines:
        console.print(Text(line))


def fitted(heads: Row, rows: Sequence[Row], cut: int, width: int | None) -> tuple[str, list[str]]:
    """The table's head and its lines, none wider than `width` columns; None: as wide as they are.

    If a name without its middle does not make the table narrow enough, each row becomes pairs of head and cell, on as many
    lines as it takes. Such rows have no head above them.
    """
    widths = [max(map(cell_len, column)) for column in zip(heads, *rows, strict=True)]
    excess = 0 if width is None else sum(widths) + len(GAP) * (len(widths) - 1) - width
    if excess > 0:
        if widths[cut] - excess < LEAST_CUT:
            return "", [line for row in rows for line in _stacked(heads, row, width or 0)]
        widths[cut] -= excess
        rows = [[*row[:cut], without_middle(row[cut], widths[cut]), *row[cut + 1 :]] for row in rows]
    head, *lines = (_line(row, widths) for row in (heads, *rows))
    return head, lines


def without_middle(text: str, width: int) -> str:
    """A text of at most `width` columns: its beginning, an ellipsis, and its end, where the number of a job is."""
    if cell_len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{chop_cells(text, width - 1 - end)[0]}{ELLIPSIS}{chop_cells(text[::-1], end)[0][::-1]}"


def _line(row: Row, widths: Sequence[int]) -> str:
    cells = (f"{cell}{' ' * (width - cell_len(cell))}" for cell, width in zip(row, widths, strict=True))
    return GAP.join(cells).rstrip()


def _stacked(heads: Row, row: Row, width: int) -> list[str]:
    """The cells of a row that hold something, each after its head, on lines of at most `width` columns."""
    lines: list[str] = []
    for head, cell in zip(heads, row, strict=True):
        pair = without_middle(f"{head} {cell}", width - len(GAP)) if cell else ""
        if lines and cell_len(lines[-1]) + len(GAP) + cell_len(pair) <= width:
            lines[-1] += pair and GAP + pair
        else:
            lines.append(GAP * bool(lines) + pair)
    return lines
