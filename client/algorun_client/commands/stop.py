"""`algorun stop`: asks a job to end early. Its ranks get SIGTERM, and 120 s to save."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from algorun_client.aws.job_state import ask_to_stop
from algorun_client.common import json_lines
from algorun_client.common.codes import ClientCode
from algorun_client.submit.read.common_options import add_job_argument

from .find_job import open_job


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_job_argument(parser)


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Returns 0 if the job stops now or has ended already."""
    connection, state = open_job(options, environ)
    api = connection.target.sagemaker
    asked = state.status == "InProgress"
    if asked:
        ended = ask_to_stop(api, state.kind, state.job)
        if ended is not None:  # between the two calls
            state, asked = ended, False
    if options.json:
        json_lines.write("stop", job=state.job, asked=asked, status=state.status)
        again = "" if state.ended else connection.follow_again(state.job)
        json_lines.write_end(json_lines.LastObject(job=state.job, again=again))
    elif asked:
        print(f"job {state.job} is asked to stop; its program has 120 s to save")
        print(f"see its end with: {connection.follow_again(state.job)}")
    else:
        print(f"job {state.job}: {state.status}; nothing to stop")
    return ClientCode.OK
