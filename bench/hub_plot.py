"""Draws what bench/hub.py measured: `python bench/hub_plot.py OUT.svg NAME=FIGURES.json ..`, one line for each file."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, PLOT_W, PLOT_H, GAP = 1020, 340, 60, 50, 400, 220, 110
COLOURS = ("#8a93a8", "#2f6fd0", "#2a9a57", "#c0712a")
GOALS = ((64, 2.0), (512, 10.0))  # hosts and percent of a core


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes; `key` is the figure of bench/hub.py that it shows."""

    key: str
    title: str
    unit: str
    left: int
    most_hosts: float
    most: float

    def x(self, hosts: float) -> float:
        return self.left + PLOT_W * hosts / self.most_hosts

    def y(self, value: float) -> float:
        return TOP + PLOT_H * (1 - value / self.most)

    def frame(self, counts: Sequence[int]) -> list[str]:
        """Axes, their numbers, the title."""
        out = [text(self.left, TOP - 18, self.title, "start", 14, bold=True)]
        for step in range(5):
            value = self.most * step / 4
            y = self.y(value)
            out.append(f'<line x1="{self.left}" y1="{y:.1f}" x2="{self.left + PLOT_W}" y2="{y:.1f}" stroke="#e3e6ee"/>')
            out.append(text(self.left - 8, y + 4, f"{value:g}{self.unit}", "end"))
        out += [text(self.x(count), TOP + PLOT_H + 18, str(count)) for count in counts]
        out.append(text(self.left + PLOT_W / 2, TOP + PLOT_H + 38, "hosts"))
        return out

    def line(self, rows: Sequence[Mapping[str, float]], colour: str) -> list[str]:
        points = [(self.x(row["hosts"]), self.y(row[self.key])) for row in rows]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in points]
        return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>', *dots]


def text(x: float, y: float, words: str, anchor: str = "middle", size: int = 12, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{weight} fill="#223">{escape(words)}</text>'


def ceiling(value: float) -> float:
    """The next of 1, 2, 4, 8 times a power of ten: it divides into four."""
    power = 1.0
    while power * 8 < value:
        power *= 10
    return next(power * step for step in (0.1, 0.2, 0.4, 0.8, 1, 2, 4, 8) if power * step >= value)


def draw(series: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    rows = [row for each in series.values() for row in each]
    counts = sorted({int(row["hosts"]) for row in rows})
    widest = counts[-1] * 1.05
    share_top = ceiling(max([row["share"] for row in rows] + [goal for _, goal in GOALS]))
    gate_top = ceiling(max(row["gate_s"] for row in rows))
    panels = (
        Panel("share", "the leader's supervisor: share of a core", " %", LEFT, widest, share_top),
        Panel("gate_s", "gate: from the first connection to the last go", " s", LEFT + PLOT_W + GAP, widest, gate_top),
    )
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="Helvetica, Arial, sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for panel in panels:
        out += panel.frame(counts)
        for (_, each), colour in zip(series.items(), COLOURS, strict=False):
            out += panel.line(each, colour)
    for hosts, goal in GOALS:
        x, y = panels[0].x(hosts), panels[0].y(goal)
        out.append(
            f'<line x1="{x - 14:.1f}" y1="{y:.1f}" x2="{x + 14:.1f}" y2="{y:.1f}" stroke="#c03030" stroke-width="3"/>'
        )
    out.append(text(panels[0].x(GOALS[-1][0]) + 20, panels[0].y(GOALS[-1][1]) + 4, "goal", "start"))
    for at, (name, colour) in enumerate(zip(series, COLOURS, strict=False)):
        out.append(f'<rect x="{LEFT + 180 * at}" y="{HEIGHT - 22}" width="14" height="4" fill="{colour}"/>')
        out.append(text(LEFT + 180 * at + 20, HEIGHT - 16, name, "start"))
    return "\n".join([*out, "</svg>", ""])


def main() -> int:
    target, *named = sys.argv[1:]
    pairs = [word.partition("=") for word in named]
    series = {name: json.loads(Path(path).read_text())["medians"] for name, _, path in pairs}
    Path(target).write_text(draw(series), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
