"""One task in the first of several regions that has room for it: all types of hosts there, then those of the next region."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from algorun.common.errors import UserError
from algorun_client.common.codes import ClientCode
from algorun_client.common.errors import ApiError, NotFound
from algorun_client.common.refusals import Unanswered, refusal
from algorun_client.connection import Site
from algorun_client.submit.assemble import prepare
from algorun_client.submit.assemble.prepare import prepared
from algorun_client.submit.look_up.facts import Facts
from algorun_client.submit.look_up.look_up import look_up
from algorun_client.submit.place.place import Placed, SubmitFlags
from algorun_client.submit.place.telling import Telling
from algorun_client.submit.read.read import SubmitOrder
from algorun_client.submit.read.spec import SourceKind, TaskSpec

from .history import ended_jobs
from .home_region import RegionSite, check_others, home
from .host_choice import NO_ROOM, place_in_series
from .next_hosts import NextHosts

if TYPE_CHECKING:
    from algorun_client.aws.aws_session import AwsSession


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedUp:
    """The task in one region, and what AWS knows there."""

    asked: SubmitOrder
    connection: Site
    facts: Facts


def orders(asked: SubmitOrder) -> list[SubmitOrder]:
    """The task in each of its regions, the preferred one first."""
    found = []
    for spec in (asked.spec, *asked.spec.elsewhere):
        folders = {each.name for each in spec.inputs if each.kind is SourceKind.FOLDER}
        data = {name: files for name, files in asked.data.items() if name in folders}
        found.append(replace(asked.of(spec), data=data))
    return found


def look_up_all(asked: SubmitOrder, connect: Callable[[TaskSpec], Site], environ: Mapping[str, str]) -> list[LookedUp]:
    """What each region knows. Writes nothing. Raises UserError that names the region for what is missing in any of them."""
    found: list[LookedUp] = []
    for order in orders(asked):
        with naming(order.spec.region):
            connection = connect(order.spec)
            if connection.session is not None:
                _check_places(order.spec, connection, connection.session)
            facts = look_up(order.spec, order.reading, connection, environ)
            prepare.check(order, facts)
            if found:
                _check_image(found[0], order.spec, facts)
            found.append(LookedUp(asked=order, connection=connection, facts=facts))
    return found


@contextmanager
def naming(region: str) -> Iterator[None]:
    """An error says which of several regions it is about."""
    try:
        yield
    except Unanswered:
        raise
    except UserError as error:
        if region in error.where + error.what:
            raise
        what = f"{error.what} (in {region}, of --region)"
        raise UserError(error.where, what, allowed=error.allowed, fix=error.fix, code=error.code) from None


def _check_places(spec: TaskSpec, connection: Site, session: AwsSession) -> None:
    """Raises UserError if the image, the bucket, or the bucket of an input is not in this region."""
    from algorun_client.aws import account

    try:
        session.check_digest(spec.image)
    except UserError as error:
        if error.code != ClientCode.CREDENTIALS or isinstance(error, Unanswered):
            raise  # else this caller may not read it, and SageMaker may
    bucket = spec.bucket or connection.default_bucket()
    try:
        account.check_bucket(session, bucket, spec.folder)
    except NotFound:
        raise UserError(
            "--bucket",
            f"{bucket} does not exist, and a job in {spec.region} needs one there",
            fix=f"--create-bucket, or `bucket` in [regions.{spec.region}] of the job file",
        ) from None
    for each in spec.inputs:
        if each.kind is not SourceKind.S3:
            continue
        region = account.region_of_bucket(session, each.source.split("/")[2])
        if region not in ("", spec.region):
            raise UserError(
                each.where,
                f"{each.source} lies in {region}, and SageMaker reads inputs of a job in {spec.region} from {spec.region} alone",
                fix=f"copy it there, and name it: `in.{each.name}` in [regions.{spec.region}] of the job file",
            )


def _check_image(first: LookedUp, spec: TaskSpec, facts: Facts) -> None:
    """Raises UserError if the same address has another image in this region: the job would run other software."""
    here, there = _digest(facts.image), _digest(first.facts.image)
    same_name = spec.image.partition("/")[2] == first.asked.spec.image.partition("/")[2]
    if here and there and here != there and same_name:
        raise UserError(
            "--image",
            f"{spec.image} is another image ({here}) than the one in {first.asked.spec.region} ({there})",
            fix=f"`./build.sh push --region {spec.region}` of the same image, or `image` in [regions.{spec.region}] of the job file",
        )


def _digest(image: str | None) -> str:
    return (image or "").partition("@")[2]


class InRegions:
    """Places the jobs of a task. Use it as a context: it holds the packed code."""

    def __init__(self, looked_up: Sequence[LookedUp]) -> None:
        self._looked_up = looked_up
        self._open = ExitStack()
        self.sites: list[RegionSite] = []
        self._last: tuple[int, Placed] | None = None  # the job that this client has placed last, and its region

    def __enter__(self) -> InRegions:
        with ExitStack() as stack:
            for each in self._looked_up:
                order = each.asked
                if self.sites:  # the same files, packed and read once
                    first = self.sites[0].make.material
                    code = None if order.started.added else first.code
                    order = replace(order, archive=code, hashed={name: first.inputs[name] for name in order.data})
                make = stack.enter_context(prepared(order, each.facts))
                self.sites.append(RegionSite(make=make, connection=each.connection))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def begin_at(self) -> RegionSite:
        """The region that the next job is tried in first. Raises UserError or ApiError."""
        return home(self.sites) or self.sites[0]

    def place(self, *, flags: SubmitFlags, telling: Telling) -> tuple[RegionSite, Placed]:
        """As `place_in_series`; takes the next region where none of the kinds of hosts has room, if nothing of the task exists.

        Raises the last region's ApiError if none has room.
        """
        refused: ApiError | None = None
        number = self._number()
        while True:
            site = self.sites[number]
            try:
                placed = place_in_series(
                    site.make,
                    site.connection,
                    flags=flags,
                    telling=telling,
                    last_look=partial(check_others, self.sites, site),
                )
                self._last = (number, placed)
                return site, placed
            except ApiError as error:
                if refusal(error) not in NO_ROOM:
                    raise
                refused = error
            if (then := self.elsewhere(site)) is None:
                raise self._with_home(site, refused)
            last = len(site.make.asked.spec.resources.choices) - 1
            text = NextHosts.after(site.make.asked.spec, last, f"{refused.code}: {refused.message}", then)
            if telling.first(f"{site.make.address.uri}: {text.text}"):
                text.say(as_json=telling.as_json)
            number += 1

    def elsewhere(self, site: RegionSite) -> TaskSpec | None:
        """The task in the next region, if it may still begin there. Raises UserError or ApiError."""
        number = self.sites.index(site) + 1
        if number == len(self.sites) or home(self.sites) is not None:
            return None
        return self.sites[number].make.asked.spec

    def _number(self) -> int:
        """The region for the next job: where the task lives; else where the last one was tried, or after it."""
        if (lives_in := home(self.sites)) is not None:
            return self.sites.index(lives_in)
        if self._last is None:
            return 0
        number, placed = self._last
        site = self.sites[number]
        ended = ended_jobs(site.connection.target, site.make.address, placed.series, newest=placed.number)
        is_used_up = bool(ended) and ended[0].lacked_hosts and ended[0].choice + 1 >= placed.choices
        return (number + is_used_up) % len(self.sites)

    def look_up_again(self, environ: Mapping[str, str]) -> None:
        """Looks at what lies in S3 by now: a later job of a series reads that. Raises UserError."""
        lives_in = home(self.sites)
        for number, site in enumerate(self.sites):
            if lives_in in (None, site):
                asked = site.make.asked
                facts = look_up(asked.spec, asked.reading, site.connection, environ)
                self.sites[number] = replace(site, make=site.make.with_contents(facts))

    def _with_home(self, site: RegionSite, refused: ApiError) -> ApiError:
        """The refusal, with the reason why no other region is tried where there are more."""
        if site is self.sites[-1] or not (kept := site.kept()):
            return refused
        text = f"{refused.message}; the task stays in {site.name}, where it has {kept}"
        return ApiError(refused.code, text, refused.operation)
