"""`algorun logs`: the lines of all hosts of a job; with -f to its end."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from algorun_client.common import json_lines
from algorun_client.common.codes import ClientCode
from algorun_client.follow.following import follow_job, open_view
from algorun_client.follow.log_reader import LogReader
from algorun_client.submit.read.common_options import add_job_argument

from .find_job import open_job


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_job_argument(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on to the job's end, and exit with its code")


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Returns the job's own exit code with -f, else 0."""
    connection, state = open_job(options, environ)
    if options.follow:
        return follow_job(connection, state.kind, state.job, as_json=options.json)
    view = open_view(options.json)
    try:
        for lines in LogReader(connection.target.logs, state.kind, state.job).read_all():
            view.lines(lines)
    finally:
        view.close()
    if options.json:
        json_lines.write_end(json_lines.LastObject(job=state.job))
    return ClientCode.OK
