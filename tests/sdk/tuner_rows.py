"""Rows of the table of jobs that SageMaker's tuner creates. Local modes have none: a server that boto3 takes for SageMaker runs them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TunerRow:
    """One tuner of three jobs by one client."""

    name: str
    client: str
    """v2 or v3"""
    hosts: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    """its jobs' arguments"""
    world: int
    """ranks of a job"""
    expects: str
    """the expectation in words, for the table"""
    quick: bool = False

    @property
    def id(self) -> str:
        return re.sub(r"[^\w.]+", "-", f"{self.client} {self.name} x{self.hosts}")


BEST = "3 jobs; the best one by its objective in the log"
TUNERS = (
    TunerRow(name="HyperparameterTuner", client="v2", world=1, expects=BEST, quick=True),
    TunerRow(name="HyperparameterTuner, torch_distributed", client="v2", hosts=2, world=2, expects=f"{BEST}; 2 ranks each",
             options={"distribution": {"torch_distributed": {"enabled": True}}}),
    TunerRow(name="HyperparameterTuner", client="v3", world=1, expects=BEST),
    TunerRow(name="HyperparameterTuner, Torchrun", client="v3", hosts=2, world=4, expects=f"{BEST}; 4 ranks each",
             options={"processes": 2}, quick=True),
)  # fmt: skip
