"""Follows a job on the terminal, into a file or as JSON, and turns its end into an exit code."""

from __future__ import annotations

import sys

from algorun_client.connection import Site
from algorun_client.follow.follower import follow
from algorun_client.follow.outcome import DETACHED, Ending
from algorun_client.follow.view import JsonView, PlainView, View
from algorun_client.request.model import Kind


def follow_job(connection: Site, kind: Kind, job: str, *, as_json: bool) -> int:
    """Returns the exit code of the command: the job's own where it is known."""
    try:
        view, target = open_view(as_json, connection.pace.grace_s, connection.all_lines(job)), connection.following()
    except KeyboardInterrupt:  # both import libraries, which takes a moment
        view, target = (JsonView() if as_json else PlainView()), None
    try:
        outcome = follow(target, kind, job, view, connection.pace) if target else DETACHED
        runs_on = outcome.kind in (Ending.DETACHED, Ending.CONTACT_LOST)
        view.end(job, outcome, connection.follow_again(job) if runs_on else "")
    finally:
        view.close()
    return outcome.code


def open_view(as_json: bool, late_s: float = 0.0, all_lines: str = "") -> View:
    """JSON if it is asked for, the live view on a terminal, plain lines elsewhere.

    `all_lines`: the command that shows all lines of a job which is followed to its end. A terminal then shows the cause of its
    failure before tracebacks. `late_s`: how long lines may be on their way.
    """
    if as_json:
        return JsonView()
    if not sys.stdout.isatty():
        return PlainView()
    from algorun_client.follow.failure_lines import FailureLines
    from algorun_client.follow.terminal_view import TerminalView

    return TerminalView(failure=FailureLines(late_s, all_lines) if all_lines else None)
