"""`algorun submit`: one task, or several of the job file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from algorun.common.errors import UserError
from algorun_client.submit import submit
from algorun_client.submit.chain import chain_plan, submit_all
from algorun_client.submit.place.place import SubmitFlags
from algorun_client.submit.read.submit_options import add_options, split

__all__ = ["add_options", "run", "split"]


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Returns the exit code. Raises UserError or ApiError before a job is created."""
    folder, flags = Path.cwd(), SubmitFlags(force=options.force, clean_state=options.clean_state)
    if options.all or chain_plan.is_sweep(options, folder):
        return submit_all.run(options, environ, folder, flags)
    if options.queue:
        raise UserError("--queue", "is for --all, sweeps and tunings", fix="drop it")
    return submit.run(options, environ, flags)
