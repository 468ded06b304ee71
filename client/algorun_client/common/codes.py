"""How a command of the client ends: its exit code, and who set it."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class ClientCode(IntEnum):
    """The client's own exit codes. A user's script may use the same numbers, so `Source` says whose a code is."""

    OK = 0
    USAGE = 64  # bad input: an option, the job file, a request that SageMaker would refuse
    CREDENTIALS = 71  # no credentials, or they may not do this, or the role is unknown
    QUOTA = 72  # the account's limit of instances or jobs
    CAPACITY = 73  # no instances of this type at the moment
    STOPPED = 74  # the job was stopped, or ran out of time
    CONTACT_LOST = 75  # SageMaker cannot be reached any more; the job runs on
    DETACHED = 130  # Ctrl-C: the job runs on


KINDS = {
    ClientCode.CREDENTIALS: "credentials",
    ClientCode.QUOTA: "quota",
    ClientCode.CAPACITY: "capacity",
    ClientCode.CONTACT_LOST: "unreachable",
}


def kind_of(code: int) -> str:
    """The `kind` of an error of the client, as docs/submit.md lists them."""
    return next((kind for known, kind in KINDS.items() if known == code), "error")


class Source(StrEnum):
    """Who set an exit code."""

    JOB = "job"
    CLIENT = "client"
