"""`algorun submit`: makes the request, prints it (--dry-run), or sends it and follows the job."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from algorun.common.errors import UserError
from algorun_client.common.codes import ClientCode
from algorun_client.common.errors import ApiError
from algorun_client.common.refusals import Unanswered, explained
from algorun_client.request.facts import Facts
from algorun_client.request.model import Request
from algorun_client.send import claim

from . import chain_plan, dry_run, submit_all, submit_request
from .carry_out import How, follow_or_leave
from .one_task import (
    Wish,
    connect_for,
    created_before,
    look_up_facts,
    make_bucket,
    place_task,
    say_without_sending,
    text_of_done,
)
from .submit_options import add_options, split
from .submit_request import Asked
from .telling import Telling

__all__ = ["add_options", "run", "split"]


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Returns the exit code. Raises UserError or ApiError before a job is created."""
    folder = Path.cwd()
    if options.all or chain_plan.is_sweep(options, folder):
        return submit_all.run(options, environ, folder, _wish(options))
    if options.queue:
        raise UserError("--queue", "is for --all and for sweeps", fix="drop it")
    asked = submit_request.read(options, environ, folder)
    if options.dry_run:
        return _print(asked, environ, options)
    connection = connect_for(asked.spec, environ)
    if options.create_bucket:
        make_bucket(asked.spec, connection)
    placed = place_task(asked, connection, environ, wish=_wish(options), telling=Telling(options.json))
    del asked  # with its list of files: following may take days
    if placed.how is How.DONE and not options.json:
        print(f"algorun: {text_of_done(placed)}; --force runs it again", file=sys.stderr)
        again = f"algorun fetch {placed.job}{connection.options}"
        print(f"algorun: bring it home with: {again}", file=sys.stderr, flush=True)
    try:
        return follow_or_leave(connection, placed, as_json=options.json, detach=options.detach)
    except KeyboardInterrupt:  # before the follower answers it itself
        raise created_before(connection, placed) from None


def _wish(options: argparse.Namespace) -> Wish:
    return Wish(force=options.force, clean_state=options.clean_state)


def _print(asked: Asked, environ: Mapping[str, str], options: argparse.Namespace) -> int:
    """The dry run. If AWS can be asked, it prints what submit would send, or the error that submit would end with.

    Without credentials or network it names what it cannot know.
    """
    try:
        request = _looked_up(asked, environ, _wish(options), create_bucket=options.create_bucket)
    except Unanswered as error:
        with submit_request.prepared(asked, Facts()) as make:
            request = make(None)
        print(f"algorun: not looked up: {error}", file=sys.stderr)
    print(dry_run.as_json(request) if options.json else dry_run.as_text(request))
    return ClientCode.OK


def _looked_up(asked: Asked, environ: Mapping[str, str], wish: Wish, *, create_bucket: bool) -> Request:
    """The request that submit would send now; says so if it would send none.

    Raises UserError or ApiError, Unanswered if AWS cannot be asked.
    """
    connection = connect_for(asked.spec, environ, patient=False)
    if create_bucket:
        make_bucket(asked.spec, connection, dry_run=True)
    with submit_request.prepared(asked, look_up_facts(asked, connection, environ)) as make:
        target = connection.target
        try:
            request = claim.choose(target, make.address, make).request
            say_without_sending(target, make, request, wish)
        except ApiError as error:
            raise explained(error) from None
    return request
