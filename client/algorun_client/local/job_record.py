"""How far a local job has come: statuses, their times, and the reason of a failure. Pure, but for the clock it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from algorun.common.json_values import number, rows, table, text, whole
from algorun_client.aws.job_state import ENDED

REASON_LENGTH = 1024  # characters of a FailureReason or ExitMessage
# SageMaker's own words for each step.
MESSAGES = {
    "Starting": "Starting the training job",
    "Downloading": "Downloading input data",
    "Training": "Training image download completed. Training in progress.",
    "Uploading": "Uploading generated training model",
    "Stopping": "Stopping the training job",
    "Interrupted": "Training job interrupted",
    "Completed": "Training job completed",
    "Failed": "Training job failed",
    "Stopped": "Training job stopped",
    "MaxRuntimeExceeded": "Training job runtime exceeded MaxRuntimeInSeconds provided",
    "MaxWaitTimeExceeded": "Training job exceeded MaxWaitTimeInSeconds provided",
}


@dataclass(frozen=True, slots=True)
class Transition:
    """One stretch of the job's time. Times are seconds since 1970; `end` is None while it lasts."""

    status: str
    start: float
    end: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJobRecord:
    """What a Describe call says beyond the request."""

    created: float  # seconds since 1970, as all times here
    modified: float
    status: str = "InProgress"  # InProgress, Stopping, Completed, Failed, Stopped
    secondary: str = "Starting"
    transitions: tuple[Transition, ...] = ()
    started: float | None = None  # from here on the hosts are paid for
    ended: float | None = None
    billable_s: float = 0.0  # of each host
    failure: str = ""
    exit_message: str = ""  # of a processing job
    model: str = ""  # the address of the model's archive
    attempt: int = field(default=0)  # seconds since 1970 that name the log streams of the hosts that run

    @classmethod
    def new(cls, now: float) -> LocalJobRecord:
        """The record of a job that was accepted."""
        return cls(created=now, modified=now, transitions=(Transition("Starting", now),))

    def moved(self, secondary: str, now: float) -> LocalJobRecord:
        """The record after a step to another secondary status."""
        past = tuple(replace(each, end=now) if each.end is None else each for each in self.transitions)
        return replace(self, modified=now, secondary=secondary, transitions=(*past, Transition(secondary, now)))

    def finished(self, status: str, now: float, *, secondary: str = "", failure: str = "") -> LocalJobRecord:
        """The record at the job's end. `secondary`: MaxRuntimeExceeded and the like; else that of the status."""
        moved = self.moved(secondary or status, now)
        past = tuple(replace(each, end=now) if each.end is None else each for each in moved.transitions)
        return replace(
            moved,
            status=status,
            ended=now,
            failure=failure[:REASON_LENGTH],
            transitions=past,
        )

    @property
    def has_ended(self) -> bool:
        """True once nothing of the job runs any more."""
        return self.status in ENDED

    def to_json(self) -> dict[str, object]:
        """For the job's folder."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> LocalJobRecord:
        """What `to_json` made, also that of another version: keys that this one does not know are left out. Raises ValueError for
        a value of another type."""
        known: dict[str, Any] = {}  # Any: the readers have checked each value
        for each in fields(cls):
            if each.name in value:
                known[each.name] = _READERS[str(each.type)](value[each.name])
        if missing := {"created", "modified"} - known.keys():
            raise ValueError(f"no {min(missing)}")
        return cls(**known)


def _transitions(value: object) -> tuple[Transition, ...]:
    found = [table(each) for each in rows(value)]
    return tuple(
        Transition(text(each.get("status")), number(each.get("start")), _number_or_none(each.get("end")))
        for each in found
    )


def _number_or_none(value: object) -> float | None:
    return None if value is None else number(value)


# What reads a field, by its annotation.
_READERS: dict[str, Callable[[object], object]] = {
    "float": number,
    "float | None": _number_or_none,
    "int": whole,
    "str": text,
    "tuple[Transition, ...]": _transitions,
}


def failure_reason(text: str, code: int) -> str:
    """SageMaker's words for a container that failed: its output/failure, and its exit code. At most 1,024 characters."""
    end = f", exit code: {code}"
    return f"AlgorithmError: {text.strip()[: REASON_LENGTH - len('AlgorithmError: ') - len(end)]}{end}"
