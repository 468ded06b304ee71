"""Names of projects, tasks and jobs. Pure."""

from __future__ import annotations

import hashlib
import re

from algorun.common.errors import UserError

from .model import TaskAddress

LONGEST = 48  # characters of a project's or a task's name
LONGEST_JOB = 63  # SageMaker's limit
LONGEST_TUNING = 32  # the same for a tuning job
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
HASH = 6  # hexadecimal digits; they keep tasks of the same name in two buckets apart


def checked(where: str, name: str) -> str:
    """The name of a project or task. Raises UserError if it is not one; `where` names the option."""
    if len(name) > LONGEST or NAME.fullmatch(name) is None or ".." in name:
        raise UserError(
            where,
            f"{name!r} is not a name",
            allowed=f"letters, digits, '-', '_' and '.', at most {LONGEST} characters, a letter or digit at each end",
            fix=f"{where.split()[-1]} {suggested(name)}",
        )
    return name


def suggested(text: str) -> str:
    """A name made from any text: `My images!` becomes `My-images`."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:LONGEST].strip("-_.")
    return re.sub(r"\.{2,}", ".", plain) or "task"


def job_name(address: TaskAddress, number: int) -> str:
    """The job of an execution: PROJECT-TASK-NNNN-HASH, the same on every machine."""
    end = f"-{number:04d}-{hashlib.sha256(address.uri.encode()).hexdigest()[:HASH]}"
    head = in_job_name(f"{address.project}-{address.task}")
    return head[: LONGEST_JOB - len(end)].rstrip("-") + end


def in_job_name(text: str) -> str:
    """A text as it stands in the names of jobs, which have letters, digits and hyphens alone."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text)


def tuning_job_name(address: TaskAddress, number: int) -> str:
    """The job of SageMaker's tuner for a task's tuning: TASK-NNNN-HASH. Its training jobs add to this name."""
    end = f"-{number:04d}-{hashlib.sha256(address.uri.encode()).hexdigest()[:HASH]}"
    return in_job_name(address.task)[: LONGEST_TUNING - len(end)].rstrip("-") + end
