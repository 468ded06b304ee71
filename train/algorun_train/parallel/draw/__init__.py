"""Pictures of a pipeline: text for the terminal and the log, SVG, and a trace for a browser."""

from .chrome_trace import chrome_trace
from .svg import svg
from .text import memory_text, partition_text, schedule_text

__all__ = ["chrome_trace", "memory_text", "partition_text", "schedule_text", "svg"]
