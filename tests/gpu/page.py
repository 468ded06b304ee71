"""The page that the results go to, and the file that keeps them between runs with --only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from .harness import Row
from .machine import Machine
from .session import Figure

BEGIN = "<!-- gpu-test: begin; `make test PART=gpu` writes what follows -->"
END = "<!-- gpu-test: end -->"
LONGEST_NOTE = 600  # characters of a note in a table; the log has all of it
CPU_MARK = "CPU: "


def render(machine: Machine, rows: Sequence[Row], names: Sequence[str]) -> str:
    """The block between the markers, as Markdown; `names` are those of all checks. Figures of the CPU say so, each of them."""
    counts = ", ".join(f"{sum(r.state == s for r in rows)} {s}" for s in ("passed", "failed", "skipped"))
    missing = [f"`{name}`" for name in names if name not in {row.name for row in rows}]
    left = f"Not run here: {', '.join(missing)}. " if missing else ""
    lines = [
        f"Measured on {machine}.",
        "",
        f"Checks: {counts}. {left}Each row has its date and the commit of algorun.",
        "",
    ]
    if not machine.on_gpu:
        lines = ["**Measured on a CPU. These figures say nothing about a GPU.**", "", *lines]
    mark = "" if machine.on_gpu else CPU_MARK
    figures = [[figure.name, mark + figure.value, figure.how, row.when] for row in rows for figure in row.figures]
    if figures:
        lines += [*_table(("figure", "value", "of what", "when"), figures), ""]
    found = [[f"`{r.name}`", r.title, r.state, f"{mark}{r.seconds:.1f}", r.note, r.when] for r in rows]
    lines += _table(("check", "what it shows", "result", "seconds", "what was seen", "when"), found)
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(map(_cell, row))} |" for row in rows]


def _cell(text: str) -> str:
    """One line without the table's own sign; a long text loses its middle, since errors end with their reason."""
    plain = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    half = LONGEST_NOTE // 2
    return plain if len(plain) <= LONGEST_NOTE else f"{plain[:half]} .. {plain[-half:]}"


def write(page: Path, block: str) -> None:
    """Puts the block between the page's markers; a page without them, or none, gets them at its end."""
    text = page.read_text(encoding="utf-8") if page.exists() else "# GPUs\n\n"
    if BEGIN in text and END in text.split(BEGIN, 1)[1]:
        before, rest = text.split(BEGIN, 1)
        after = rest.split(END, 1)[1]
    else:
        before, after = text.rstrip("\n") + "\n\n", "\n"
    _replace(page, f"{before}{BEGIN}\n\n{block}\n\n{END}{after}")


def kept(file: Path, machine: Machine, rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """`rows` and, of the same machine and software, the results that an earlier run left in `file`; by `names`' order.

    Writes all of them to the file.
    """
    merged = {row.name: row for row in [*_read(file, machine), *rows]}
    ordered = [merged[name] for name in names if name in merged]
    file.parent.mkdir(parents=True, exist_ok=True)
    _replace(file, json.dumps({"machine": machine.identity(), "rows": [asdict(row) for row in ordered]}, indent=1))
    return ordered


def _read(file: Path, machine: Machine) -> list[Row]:
    """What is in the file; nothing where it is of another machine, or cannot be read."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["machine"] != json.loads(json.dumps(machine.identity())):
            return []
        return [
            Row(**{**row, "figures": tuple(Figure(**figure) for figure in row["figures"])}) for row in found["rows"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _replace(file: Path, text: str) -> None:
    """Whole or not at all: a run may be ended at any time."""
    aside = file.with_name(f".{file.name}.new")
    aside.write_text(text, encoding="utf-8")
    aside.replace(file)
