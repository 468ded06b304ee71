"""In which of several regions a task lives: where it has had a job on hosts, and so has its checkpoints and its history.

A task is kept whole in the bucket of one region, because SageMaker wants a job's bucket in the region of the job. It
may begin in another region only as long as nothing of it exists: a job that found no free instances has left nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from algorun.common.errors import UserError
from algorun_client.aws.api import Target
from algorun_client.connection import Site
from algorun_client.follow.outcome import Ending, judge
from algorun_client.request.model import TaskAddress
from algorun_client.submit.assemble.prepare import Maker
from algorun_client.submit.history import claims
from algorun_client.submit.history.claims import Claim
from algorun_client.submit.place import decision, state_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSite:
    """The task in one region: its requests, and the way there."""

    make: Maker
    connection: Site

    @property
    def name(self) -> str:
        """The region."""
        return self.make.asked.spec.region

    def kept(self) -> str:
        """What the task has here: the name of a job, or the place of its state; "" if it may begin elsewhere."""
        return _kept(self.connection.target, self.make.address)


def home(sites: Sequence[RegionSite]) -> RegionSite | None:
    """The region in which the task lives; None if it may begin in any. Raises UserError if there are two."""
    found = [(site, kept) for site in sites if (kept := site.kept())]
    if len(found) > 1:
        places = " and ".join(f"in {site.name} ({kept})" for site, kept in found)
        raise UserError(
            "--region",
            f"the task has a state of its own {places}",
            allowed="several regions for a task that lives in one of them at most",
            fix=f"--region {found[0][0].name}, one region, or another --task",
        )
    return found[0][0] if found else None


def check_others(sites: Sequence[RegionSite], own: RegionSite) -> None:
    """Raises UserError if another client has begun the task in another region. To be called once no other can begin it here."""
    for site in sites:
        if site is not own and (kept := site.kept()):
            raise UserError(
                "--region",
                f"another client begins the task in {site.name} ({kept}), or was interrupted there",
                fix="submit again: the same line joins its job, at the latest in 30 minutes",
            )


def _kept(target: Target, address: TaskAddress) -> str:
    for claim in claims.newest_first(target.store, address):
        state = claims.state_of(target, claim)
        if state is None and may_be_created(target, address, claim):
            return claim.job
        if state is not None and (not state.ended or judge(state).kind is not Ending.CAPACITY):
            return claim.job
    return address.state if any(state_folder.objects(target.store, address)) else ""


def may_be_created(target: Target, address: TaskAddress, claim: Claim) -> bool:
    """True if a client has given its word to create this job, and may still do so."""
    age = decision.age(target.store, address, claim.number, decision.CREATE)
    is_given = age is not None and age < decision.GIVEN_UP
    return is_given and not decision.is_abandoned(target.store, address, claim.number)
