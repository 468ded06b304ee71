"""Why a task of a chain has failed: as its job says, or as the client does. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from algorun.common.errors import UserError
from algorun_client.common.codes import Source, kind_of
from algorun_client.follow.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a task has failed."""

    task: str
    code: int
    kind: str
    source: Source
    text: str
    job: str = ""

    @classmethod
    def of_job(cls, task: str, job: str, outcome: Outcome) -> Fault:
        """As the end of a job says."""
        return cls(
            task=task, code=outcome.code, kind=outcome.kind.value, source=outcome.source, text=outcome.text, job=job
        )

    @classmethod
    def of_client(cls, task: str, error: UserError) -> Fault:
        """As an error of the client says."""
        return cls(task=task, code=error.code, kind=kind_of(error.code), source=Source.CLIENT, text=str(error))
