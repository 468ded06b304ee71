"""Whether the hosts of a job that has ended were held (`--hold-on-failure`), and why not. Pure.

The launcher holds the hosts of a job that fails once its ranks have started, unless somebody has asked it to stop
(algorun.host.hold).
"""

from __future__ import annotations

from algorun.common.durations import duration
from algorun_client.aws.job_state import JobState

from .outcome import HEADLINE, Ending, judge

WITHOUT_RANKS = ("gate", "setup", "preflight", "mismatch", "configuration")  # kinds of failures before any rank starts
OF_AWS = ("CapacityError", "ResourceLimitExceeded", "ClientError", "InternalServerError")  # how its own failures begin


def no_hold(state: JobState) -> str:
    """Why no host of a job that has ended is held, in one sentence without its full stop; "" while it runs."""
    if not state.ended:
        return ""
    if state.hold_s <= 0:
        return "no host was held: the job was sent without --hold-on-failure"
    match judge(state).kind:
        case Ending.COMPLETED:
            return "no host was held: the job has not failed"
        case Ending.STOPPED:
            return "no host is held: a stop ends a hold, and none begins after a stop"
        case Ending.OUT_OF_TIME:
            return "no host is held: a hold ends with the time of the job (--max-run, --max-wait)"
    return failed_without_hold(state) or f"no host is held any more: the hold of {duration(state.hold_s)} is over"


def failed_without_hold(state: JobState) -> str:
    """The same of a failed job that asked for a hold and had none; "" for all others."""
    if state.hold_s <= 0 or state.status != "Failed":
        return ""
    if state.failure.startswith(OF_AWS):
        return "no host was held: SageMaker has ended the job, and the launcher held nothing"
    lines = (state.exit_message or state.failure).splitlines()
    headline = next((line for line in lines if HEADLINE.match(line)), "").removeprefix("AlgorithmError: ")
    kind, _, who = headline.partition(": ")
    if kind in WITHOUT_RANKS and not who.startswith("rank "):
        return f"no host was held: the job failed ({kind}) before its ranks had started"
    return ""
