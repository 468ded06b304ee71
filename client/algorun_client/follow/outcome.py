"""How a job ended: the exit code of the command that follows it, and who set that code. Pure.

DescribeTrainingJob has no field for the container's exit code. It stands in the first line of the failure text that
algorun's launcher writes; SageMaker appends `exit code: N` to the text, unless that is too long.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from algorun_client.aws.job_state import JobState
from algorun_client.common.codes import ClientCode, Source

UNKNOWN = 1  # the exit code for a failed job whose own code is nowhere

# `exit: rank 3 on algo-2, exit 3, attempt 1: ..` or `preflight: algo-1, exit 69: ..` (the launcher's Failure.headline)
HEADLINE = re.compile(
    r"(?:AlgorithmError: )?[a-z]+: (?:rank \d+ on )?[A-Za-z0-9.-]+, exit (\d{1,3})(?: \(SIG\w+\))?(?=[,:\s]|$)"
)
# `, exit code: 3` at the end; some reasons of AWS end with a full stop.
APPENDED = re.compile(r"exit code:? (\d{1,3})\b")
# What SageMaker puts before the text of the container, and after it.
WRAPPING = re.compile(r"^AlgorithmError: |,?\s*exit code:? \d{1,3}\.?\s*$")


class Ending(StrEnum):
    """How following ended."""

    COMPLETED = "completed"
    FAILED = "failed"  # the program failed, or SageMaker did
    STOPPED = "stopped"
    OUT_OF_TIME = "out_of_time"
    CAPACITY = "capacity"
    QUOTA = "quota"
    DETACHED = "detached"  # by the user; the job runs on
    CONTACT_LOST = "contact_lost"  # the job runs on


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a command that followed a job."""

    code: int
    kind: Ending
    source: Source
    text: str = ""  # the root cause, or what happened
    code_known: bool = True

    def line(self, job: str) -> str:
        """The last line: how it ended, the code and who set it."""
        words = {
            Ending.COMPLETED: "has completed",
            Ending.FAILED: "has failed",
            Ending.STOPPED: "was stopped",
            Ending.OUT_OF_TIME: "ran out of time and was stopped",
            Ending.CAPACITY: "found no free instances",
            Ending.QUOTA: "is above a quota of the account",
            Ending.DETACHED: "runs on without this command",
            Ending.CONTACT_LOST: "cannot be seen any more; it runs on",
        }[self.kind]
        code = str(self.code) if self.code_known else f"{self.code} (code unknown)"
        return f"job {job} {words}: exit {code}, kind={self.kind} source={self.source}"


DETACHED = Outcome(ClientCode.DETACHED, Ending.DETACHED, Source.CLIENT)  # by Ctrl-C


def judge(state: JobState) -> Outcome:
    """The outcome of a job that has ended. Raises ValueError if it has not."""
    text = state.exit_message or state.failure
    match state.status:
        case "Completed":
            return Outcome(ClientCode.OK, Ending.COMPLETED, Source.JOB)
        case "Stopped" if state.detail in ("MaxRuntimeExceeded", "MaxWaitTimeExceeded"):
            return Outcome(ClientCode.STOPPED, Ending.OUT_OF_TIME, Source.CLIENT, root_cause(text))
        case "Stopped":
            return Outcome(ClientCode.STOPPED, Ending.STOPPED, Source.CLIENT, root_cause(text))
        case "Failed" if state.failure.startswith("CapacityError"):
            return Outcome(ClientCode.CAPACITY, Ending.CAPACITY, Source.CLIENT, state.failure)
        case "Failed" if state.failure.startswith("ResourceLimitExceeded"):
            return Outcome(ClientCode.QUOTA, Ending.QUOTA, Source.CLIENT, state.failure)
        case "Failed":
            code = own_code(state.exit_message) or own_code(state.failure)
            return Outcome(code or UNKNOWN, Ending.FAILED, Source.JOB, root_cause(text), code_known=bool(code))
        case _:
            raise ValueError(f"job {state.job} has not ended: {state.status}")


def own_code(text: str) -> int:
    """The job's own code in a failure text, 0 if there is none."""
    for line in text.splitlines():  # the user's script may have written lines before ours
        found = HEADLINE.match(line)
        if found:
            return int(found[1])
    appended = APPENDED.findall(text)
    return int(appended[-1]) if appended else 0


def root_cause(text: str) -> str:
    """A failure text without what SageMaker puts around it."""
    return WRAPPING.sub("", text.strip()).strip()
