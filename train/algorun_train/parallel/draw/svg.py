"""Timelines as an SVG picture: one lane per pipeline rank, time to the right, such as planned above measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from algorun_train.parallel.schedules import Span, Timeline

WIDTH, LEFT, RIGHT, LANE, GAP = 1200, 84, 24, 34, 6  # pixels
SHADES = {  # of a rank's first stage and of its last one: (fill, fill)
    "F": ("#9ec9f0", "#2f78bd"),
    "B": ("#a9dba3", "#2c8a4b"),
    "I": ("#c9b8ea", "#7353b5"),
    "W": ("#fbd08a", "#c97f12"),
}
NAMES = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
INK, PALE, IDLE = "#24292f", "#6e7781", "#f3f4f6"
FONT = "font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\""


@dataclass(frozen=True, slots=True)
class Font:
    """How a text looks: its height in pixels, its colour, and which of its ends its place is."""

    size: int
    fill: str = INK
    anchor: str = "start"
    bold: bool = False


def svg(title: str, timelines: Sequence[tuple[str, Timeline]]) -> str:
    """The picture of (label, timeline) pairs below each other, all at one scale so that lengths can be compared."""
    longest = max((timeline.step_s for _, timeline in timelines), default=0.0) or 1.0
    scale = (WIDTH - LEFT - RIGHT) / longest
    kinds = {span.action.kind for _, timeline in timelines for spans in timeline.ranks for span in spans}
    several = any(_stages(spans)[1:] for _, timeline in timelines for spans in timeline.ranks)
    parts = [_text(LEFT, 32, title, Font(20, bold=True)), *_legend([k for k in NAMES if k in kinds], several)]
    top = 84
    for label, timeline in timelines:
        parts += _timeline(label, timeline, top, scale)
        top += 52 + len(timeline.ranks) * (LANE + GAP)
        parts += _axis(longest, scale, top - 18, top - 26 - len(timeline.ranks) * (LANE + GAP))
        top += 34
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}" {FONT}>'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{top}" fill="#ffffff"/>', *parts, "</svg>"]) + "\n"


def _timeline(label: str, timeline: Timeline, top: float, scale: float) -> list[str]:
    caption = f"{label}: step {_ms(timeline.step_s)} ms, bubble {timeline.bubble:.1%}"
    parts = [_text(LEFT, top + 12, caption, Font(14, bold=True))]
    top += 26
    for rank, (spans, bubble) in enumerate(zip(timeline.ranks, timeline.bubbles, strict=True)):
        y = top + rank * (LANE + GAP)
        width = timeline.step_s * scale
        parts.append(_text(LEFT - 12, y + LANE / 2, f"rank {rank}", Font(13, anchor="end")))
        parts.append(_text(LEFT - 12, y + LANE / 2 + 14, f"idle {bubble:.0%}", Font(10, PALE, "end")))
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{width:.2f}" height="{LANE}" fill="{IDLE}"/>')
        stages = _stages(spans)
        for span in spans:
            parts += _span(span, stages, y, timeline.begin_s, scale)
    return parts


def _span(span: Span, stages: Sequence[int], y: float, zero: float, scale: float) -> list[str]:
    kind, stage, microbatch = span.action
    x, width = LEFT + (span.begin_s - zero) * scale, (span.end_s - span.begin_s) * scale
    if width <= 0:
        return []
    share = stages.index(stage) / max(1, len(stages) - 1)
    fill, ink = _mix(*SHADES[kind], share), "#ffffff" if share > 0.5 else INK
    edge = 0.8 if width > 4 else 0.0  # a white seam between neighbours, where there is room
    tip = f"<title>{span.action}: {_ms(span.end_s - span.begin_s)} ms</title>"
    size = f'x="{x:.2f}" y="{y}" width="{max(width - edge, 0.4):.2f}" height="{LANE}"'
    parts = [f'<rect {size} rx="{min(3.0, width / 6):.1f}" fill="{fill}">{tip}</rect>']
    if width >= 7 * len(str(microbatch)) + 5:
        parts.append(_text(x + width / 2, y + LANE / 2 + 4, str(microbatch), Font(12, ink, "middle")))
    return parts


def _axis(longest: float, scale: float, y: float, top: float) -> list[str]:
    tick = _nice(longest / 10)
    parts = [f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="{PALE}"/>']
    for number in range(int(longest / tick + 1e-9) + 1):
        x = LEFT + number * tick * scale
        parts.append(f'<line x1="{x:.2f}" y1="{y}" x2="{x:.2f}" y2="{y + 5}" stroke="{PALE}"/>')
        parts.append(_text(x, y + 18, f"{number * tick * 1e3:.6g}", Font(11, PALE, "middle")))
    parts.append(_text(LEFT - 12, y + 18, "ms", Font(11, PALE, "end")))
    return parts


def _legend(kinds: Sequence[str], several: bool) -> list[str]:
    parts, x = [], float(LEFT)
    for kind in kinds:
        parts.append(f'<rect x="{x}" y="47" width="14" height="14" rx="3" fill="{SHADES[kind][0]}"/>')
        if several:
            parts.append(f'<rect x="{x + 14}" y="47" width="14" height="14" rx="3" fill="{SHADES[kind][1]}"/>')
        x += 34 if several else 20
        parts.append(_text(x, 58, NAMES[kind], Font(12)))
        x += 7.2 * len(NAMES[kind]) + 16
    idle = "idle; numbers are microbatches" + ("; darker: a later stage of the rank" if several else "")
    parts.append(f'<rect x="{x}" y="47" width="14" height="14" rx="3" fill="{IDLE}" stroke="#d0d7de"/>')
    parts.append(_text(x + 20, 58, idle, Font(12)))
    return parts


def _text(x: float, y: float, text: str, font: Font) -> str:
    bold = ' font-weight="600"' if font.bold else ""
    place = f'x="{x:.2f}" y="{y:.2f}" font-size="{font.size}" fill="{font.fill}" text-anchor="{font.anchor}"'
    return f"<text {place}{bold}>{escape(text)}</text>"


def _stages(spans: Sequence[Span]) -> list[int]:
    return sorted({span.action.stage for span in spans})


def _mix(first: str, last: str, share: float) -> str:
    """The colour at `share` of the way from `first` to `last`."""
    pairs = [(int(first[k : k + 2], 16), int(last[k : k + 2], 16)) for k in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def _nice(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is no less than `least`."""
    power = 10.0 ** int(f"{least:e}".split("e")[1])
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}" if seconds < 1 else f"{seconds * 1e3:.0f}"
