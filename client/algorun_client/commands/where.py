"""Connects a command with the place where jobs run: AWS, or this machine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from algorun.common.systems import need_linux
from algorun_client.common import settings
from algorun_client.common.refusals import Unanswered
from algorun_client.follow.follower import LOCAL, Pace
from algorun_client.request.model import Kind
from algorun_client.target import console_links
from algorun_client.target.api import Target

if TYPE_CHECKING:
    from algorun_client.local import DockerEngine
    from algorun_client.target.aws import AwsSession

HERE = "--where local for jobs on this machine"
LOCAL_BUCKET = "local"  # of jobs on this machine, if the user names none


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A place where jobs run. `session` is None on this machine."""

    target: Target  # patient: carries calls over a minute of throttling
    following: Callable[[], Target]  # says soon that nobody answers
    session: AwsSession | None
    pace: Pace
    engine: DockerEngine | None = None  # of containers on this machine
    options: str  # what a later command needs to find the same place, such as ` --where local`

    def default_bucket(self) -> str:
        """The bucket of tasks that name none."""
        return self.session.default_bucket() if self.session else LOCAL_BUCKET

    def links(self, kind: Kind, job: str) -> Mapping[str, str]:
        """Where AWS's console shows the job (`console`) and its lines (`logs`); {} on this machine."""
        return console_links.links(kind, job, self.session.region) if self.session else {}

    def follow_again(self, job: str) -> str:
        """The command that goes on with a job, from any folder and machine."""
        return f"algorun logs -f {job}{self.options}"

    def all_lines(self, job: str) -> str:
        """The command that shows all lines of a job."""
        return f"algorun logs {job}{self.options}"


def local_root(environ: Mapping[str, str]) -> Path:
    """Where jobs on this machine keep everything: $ALGORUN_LOCAL_ROOT, else ~/.algorun."""
    return Path(os.path.abspath(settings.LOCAL_ROOT.read(environ) or Path.home() / ".algorun"))


def connect(
    where: str | None,
    *,
    profile: str,
    region: str,
    environ: Mapping[str, str],
    bucket: str = "",
    kms_key: str = "",
    docker: bool = False,
    patient: bool = True,
) -> Connection:
    """`bucket`: the one of tasks, "" for the default. `docker`: hosts of new jobs on this machine are containers.

    `patient`: False for a command that can do without answers of AWS.

    Raises UserError: with code 71 without credentials or a region; if there is no Docker engine.
    """
    if where == "local":
        need_linux("--where local")
        from algorun_client.local import DockerEngine
        from algorun_client.local import connect as connect_local

        engine = DockerEngine.chosen(environ) if docker else None
        target = connect_local(local_root(environ), engine)
        return Connection(
            target=target,
            following=lambda: target,
            session=None,
            pace=LOCAL,
            options=" --where local",
            engine=engine,
        )
    from algorun_client.target import aws

    tries = aws.SENDING if patient else aws.FOLLOWING
    try:
        session = aws.open_session(profile, region or environ.get("AWS_REGION", ""), tries)
    except Unanswered as error:
        if where is not None:
            raise
        fix = f"{error.fix}; or {HERE}"
        raise Unanswered(error.where, error.what, fix=fix, code=error.code) from None
    options = f" --region {shlex.quote(session.region)}" + (f" --profile {shlex.quote(profile)}" if profile else "")
    return Connection(
        target=session.target(bucket, kms_key),
        following=lambda: session.target(bucket, kms_key, aws.FOLLOWING),
        session=session,
        pace=Pace(grace_s=settings.FOLLOW_GRACE_S.read(environ)),
        options=options,
    )
