"""One task of `submit`, from its words to its end: read, look up, assemble, place, follow."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from algorun.common.errors import UserError
from algorun_client.common import command_line, json_lines
from algorun_client.common.codes import ClientCode
from algorun_client.common.errors import ApiError, Interrupted, NotFound
from algorun_client.common.refusals import Unanswered, explained
from algorun_client.connection import Site, connect
from algorun_client.follow.following import follow_job
from algorun_client.follow.outcome import Ending
from algorun_client.request.model import Request

from . import dry_run
from .assemble.prepare import Maker, prepared
from .look_up.facts import Facts
from .look_up.look_up import look_up
from .place import claim
from .place.place import HowPlaced, Placed, SubmitFlags, created_before, say_without_sending, text_of_done
from .place.telling import Telling
from .read.read import SubmitOrder, read_order
from .read.spec import TaskSpec
from .series.home_region import RegionSite
from .series.host_choice import place_in_series, start
from .series.in_regions import InRegions, look_up_all
from .series.job_series import JobOfSeries, JobSeries, SeriesRules


def run(options: argparse.Namespace, environ: Mapping[str, str], flags: SubmitFlags) -> int:
    """Returns the exit code. Raises UserError or ApiError before a job is created."""
    asked = read_order(options, environ, Path.cwd())
    if asked.spec.resources.until_done and options.detach and not options.dry_run:
        raise _detached()
    if options.dry_run:
        return _print(asked, environ, options, flags)
    if asked.spec.elsewhere:
        return _in_regions(asked, environ, options, flags)
    connection = connect_for(asked.spec, environ)
    if options.create_bucket:
        make_bucket(asked.spec, connection)
    if asked.spec.resources.is_series:
        return _series(asked, connection, environ, options, flags)
    placed = submit(asked, connection, environ, flags=flags, telling=Telling(options.json))
    del asked  # with its list of files: following may take days
    _say_done(connection, placed, as_json=options.json)
    try:
        return follow_or_leave(connection, placed, as_json=options.json, detach=options.detach)
    except KeyboardInterrupt:  # before the follower answers it itself
        raise created_before(connection, placed) from None


def _say_done(connection: Site, placed: Placed, *, as_json: bool) -> None:
    """Says that a task is done already, and how to fetch what it left."""
    if placed.how is HowPlaced.DONE and not as_json:
        print(f"algorun: {text_of_done(placed)}; --force runs it again", file=sys.stderr)
        again = f"algorun fetch {placed.job}{connection.options}"
        print(f"algorun: bring it home with: {again}", file=sys.stderr, flush=True)


def _series(
    asked: SubmitOrder, connection: Site, environ: Mapping[str, str], options: argparse.Namespace, flags: SubmitFlags
) -> int:
    """Several jobs, one after the other. What they are made of is kept: a later one has the same code."""
    telling = Telling(options.json)
    with prepared(asked, look_up(asked.spec, asked.reading, connection, environ)) as make:
        placed = place_in_series(make, connection, flags=flags, telling=telling)
        _say_done(connection, placed, as_json=options.json)
        try:
            if options.detach or placed.how is HowPlaced.DONE:
                return follow_or_leave(connection, placed, as_json=options.json, detach=options.detach)
            later = SubmitFlags(force=flags.runs_anyway)  # the state that a job has left is the next one's

            how = SeriesRules(spec=asked.spec, address=make.address, as_json=options.json, again=_again(options))

            def place_next() -> JobOfSeries:
                now = make.with_contents(look_up(asked.spec, asked.reading, connection, environ))
                job = place_in_series(now, connection, flags=later, telling=telling)
                return JobOfSeries(connection=connection, how=how, placed=job)

            return JobSeries(JobOfSeries(connection=connection, how=how, placed=placed), place_next).follow()
        except Interrupted:
            raise
        except KeyboardInterrupt:
            raise created_before(connection, placed) from None


def _detached() -> UserError:
    return UserError(
        "--detach",
        "with --until-done later jobs have to be created when earlier ones end",
        fix="drop it, or --no-until-done; Ctrl-C leaves at any time, and the same line goes on",
    )


def _in_regions(asked: SubmitOrder, environ: Mapping[str, str], options: argparse.Namespace, flags: SubmitFlags) -> int:
    """As `_series`, in the first of several regions that has room."""

    def connect_to(spec: TaskSpec) -> Site:
        return connect_for(spec, environ)

    if options.create_bucket:
        for spec in (asked.spec, *asked.spec.elsewhere):
            make_bucket(spec, connect_to(spec))
    telling = Telling(options.json)
    with InRegions(look_up_all(asked, connect_to, environ)) as regions:

        def job_of(site: RegionSite, placed: Placed) -> JobOfSeries:
            how = SeriesRules(
                spec=site.make.asked.spec,
                address=site.make.address,
                as_json=options.json,
                again=_again(options),
                elsewhere=lambda: regions.elsewhere(site),
            )
            return JobOfSeries(connection=site.connection, how=how, placed=placed)

        site, placed = regions.place(flags=flags, telling=telling)
        _say_done(site.connection, placed, as_json=options.json)
        try:
            if options.detach or placed.how is HowPlaced.DONE:
                return follow_or_leave(site.connection, placed, as_json=options.json, detach=options.detach)

            def place_next() -> JobOfSeries:
                regions.look_up_again(environ)
                later = SubmitFlags(force=flags.runs_anyway)  # the state that a job has left is the next one's
                return job_of(*regions.place(flags=later, telling=telling))

            return JobSeries(job_of(site, placed), place_next).follow()
        except Interrupted:
            raise
        except KeyboardInterrupt:
            raise created_before(site.connection, placed) from None


def _again(options: argparse.Namespace) -> str:
    """The line that comes back to the series: the same one, but the state that the jobs have left stays."""
    own, program = options.words[: len(options.words) - len(options.program)], options.program
    return command_line.line(["--force" if word == "--clean-state" else word for word in own] + program)


def submit(
    asked: SubmitOrder, connection: Site, environ: Mapping[str, str], *, flags: SubmitFlags, telling: Telling
) -> Placed:
    """Looks up, assembles and places a task that was read. Raises as `place`."""
    placed = None
    try:
        with prepared(asked, look_up(asked.spec, asked.reading, connection, environ)) as make:
            placed = place_in_series(make, connection, flags=flags, telling=telling)
    except KeyboardInterrupt:
        if placed is not None:  # while the packed code was removed
            raise created_before(connection, placed) from None
        raise
    return placed


def connect_for(spec: TaskSpec, environ: Mapping[str, str], *, patient: bool = True) -> Site:
    """Connects with the place where a task runs. Raises UserError."""
    return connect(
        spec.where.value,
        profile=spec.profile,
        region=spec.region,
        environ=environ,
        bucket=spec.bucket,
        kms_key=spec.kms_key,
        docker=spec.docker,
        patient=patient,
    )


def make_bucket(spec: TaskSpec, connection: Site, *, dry_run: bool = False) -> None:
    """Makes the task's bucket if the account has none of this name, and says so. A dry run raises Unanswered in its place.

    Raises UserError for a bucket of another account or region. This machine needs no bucket.
    """
    if connection.session is None:
        return
    from algorun_client.aws import account

    bucket = spec.bucket or connection.default_bucket()
    if dry_run:
        try:
            account.check_bucket(connection.session, bucket, spec.folder)
        except NotFound:
            raise Unanswered(f"bucket {bucket}", "does not exist yet: submit would make it") from None
    elif account.make_bucket(connection.session, bucket, spec.folder):
        print(f"algorun: bucket {bucket} is made in {connection.session.region}", file=sys.stderr, flush=True)


def follow_or_leave(connection: Site, placed: Placed, *, as_json: bool, detach: bool) -> int:
    """What comes after a task has its job. Returns the exit code."""
    if placed.how is HowPlaced.DONE:
        if as_json:
            json_lines.write_end(json_lines.LastObject(job=placed.job))
        return ClientCode.OK
    if detach:
        again = connection.follow_again(placed.job)
        if as_json:
            json_lines.write_end(json_lines.LastObject(kind=Ending.DETACHED.value, job=placed.job, again=again))
        else:
            print(f"algorun: follow it with: {again}", file=sys.stderr)
        return ClientCode.OK
    return follow_job(connection, placed.kind, placed.job, as_json=as_json)


def _print(asked: SubmitOrder, environ: Mapping[str, str], options: argparse.Namespace, flags: SubmitFlags) -> int:
    """The dry run. If AWS can be asked, it prints what submit would send, or the error that submit would end with.

    Without credentials or network it names what it cannot know.
    """
    try:
        request = _looked_up(asked, environ, flags, create_bucket=options.create_bucket)
    except Unanswered as error:
        with prepared(asked, Facts()) as make:
            request = make(None)
        print(f"algorun: not looked up: {error}", file=sys.stderr)
    print(dry_run.as_json(request) if options.json else dry_run.as_text(request))
    return ClientCode.OK


def _looked_up(asked: SubmitOrder, environ: Mapping[str, str], flags: SubmitFlags, *, create_bucket: bool) -> Request:
    """The request that submit would send now; says so if it would send none.

    Raises UserError or ApiError, Unanswered if AWS cannot be asked.
    """
    if asked.spec.elsewhere:
        return _looked_up_in_regions(asked, environ, flags, create_bucket=create_bucket)
    connection = connect_for(asked.spec, environ, patient=False)
    if create_bucket:
        make_bucket(asked.spec, connection, dry_run=True)
    with prepared(asked, look_up(asked.spec, asked.reading, connection, environ)) as make:
        return _request_now(make, connection, flags)


def _request_now(make: Maker, connection: Site, flags: SubmitFlags) -> Request:
    target = connection.target
    try:
        make = make.of_choice(start(target, make, flags))
        request = claim.choose(target, make.address, make).request
        say_without_sending(target, make, request, flags)
    except ApiError as error:
        raise explained(error) from None
    return request


def _looked_up_in_regions(
    asked: SubmitOrder, environ: Mapping[str, str], flags: SubmitFlags, *, create_bucket: bool
) -> Request:
    """The request for the region that submit would begin with, after a look at all of them."""

    def connect_to(spec: TaskSpec) -> Site:
        connection = connect_for(spec, environ, patient=False)
        if create_bucket:
            make_bucket(spec, connection, dry_run=True)
        return connection

    with InRegions(look_up_all(asked, connect_to, environ)) as regions:
        try:
            site = regions.begin_at()
        except ApiError as error:
            raise explained(error) from None
        print(f"algorun: the request for {site.name}, the region that submit begins with", file=sys.stderr)
        return _request_now(site.make, site.connection, flags)
