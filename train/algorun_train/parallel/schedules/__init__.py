"""Schedules as data: names, rules, the order of computations, and an event simulation of a step. Pure."""

from .schedule import (
    ALIASES,
    SCHEDULES,
    PipelineShape,
    Schedule,
    allowed_microbatches,
    check_recompute,
    find,
    orders,
    rank_of,
    rules,
    stages_of,
)  # fmt: skip
from .slots import Action
from .timeline import Orders, Simulator, Span, Timeline, in_flight_by_stage, peak_sizes, simulate

__all__ = [
    "ALIASES",
    "SCHEDULES",
    "Action",
    "Orders",
    "PipelineShape",
    "Schedule",
    "Simulator",
    "Span",
    "Timeline",
    "allowed_microbatches",
    "check_recompute",
    "find",
    "in_flight_by_stage",
    "orders",
    "peak_sizes",
    "rank_of",
    "rules",
    "simulate",
    "stages_of",
]
