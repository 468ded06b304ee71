"""Pictures of a pipeline: text for the terminal and the log, SVG, and a trace for a browser."""

from .chrome_trace import chrome_trace
from .svg import svg
from .text import decision_text, memory_text, schedule_text

__all__ = ["chrome_trace", "decision_text", "memory_text", "schedule_text", "svg"]
