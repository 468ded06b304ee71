"""Schedules as data: names, rules, the order of computations, and what an event simulation says of them."""

from .schedule import ALIASES, SCHEDULES, Schedule, allowed_microbatches, find, orders, rank_of, rules, stages_of
from .slots import Action
from .timeline import Orders, Simulator, Span, Timeline, held, held_by_stage, in_flight, simulate

__all__ = [
    "ALIASES",
    "SCHEDULES",
    "Action",
    "Orders",
    "Schedule",
    "Simulator",
    "Span",
    "Timeline",
    "allowed_microbatches",
    "find",
    "held",
    "held_by_stage",
    "in_flight",
    "orders",
    "rank_of",
    "rules",
    "simulate",
    "stages_of",
]
