"""Connects a command with the place where jobs run: AWS, or this machine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from algorun.common.systems import need_linux
from algorun_client.aws.api import Target
from algorun_client.common import settings
from algorun_client.common.refusals import Unanswered
from algorun_client.request.model import Kind

from .aws import console_links

if TYPE_CHECKING:
    from algorun_client.aws.aws_session import AwsSession
    from algorun_client.local import DockerEngine

HERE = "--where local for jobs on this machine"
LOCAL_BUCKET = "local"  # of jobs on this machine, if the user names none


@dataclass(frozen=True, slots=True, kw_only=True)
class PollTimes:
    """How often to ask. Seconds."""

    poll_s: float = 2.0  # between two rounds over the streams
    stream_s: float = 0.1  # of a round for each stream: CloudWatch answers 10 to 25 calls a second for an account
    state_s: float = 5.0
    streams_s: float = 10.0  # between two looks for new streams
    sweep_s: float = 30.0  # between two searches for late lines
    grace_s: float = 15.0  # after the job's end: CloudWatch gets the last lines later than SageMaker ends the job
    silence_s: float = 300.0  # without any answer: contact is lost


LOCAL = PollTimes(poll_s=0.2, stream_s=0.0, state_s=0.3, streams_s=0.5, sweep_s=30.0, grace_s=0.3, silence_s=10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A place where jobs run. `session` is None on this machine."""

    target: Target  # patient: carries calls over a minute of throttling
    following: Callable[[], Target]  # says soon that nobody answers
    session: AwsSession | None
    pace: PollTimes
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
) -> Site:
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
        return Site(
            target=target,
            following=lambda: target,
            session=None,
            pace=LOCAL,
            options=" --where local",
            engine=engine,
        )
    from .aws import aws_session

    tries = aws_session.SENDING if patient else aws_session.FOLLOWING
    try:
        session = aws_session.open_session(profile, region or environ.get("AWS_REGION", ""), tries)
    except Unanswered as error:
        if where is not None:
            raise
        fix = f"{error.fix}; or {HERE}"
        raise Unanswered(error.where, error.what, fix=fix, code=error.code) from None
    options = f" --region {shlex.quote(session.region)}" + (f" --profile {shlex.quote(profile)}" if profile else "")
    return Site(
        target=session.target(bucket, kms_key),
        following=lambda: session.target(bucket, kms_key, aws_session.FOLLOWING),
        session=session,
        pace=PollTimes(grace_s=settings.FOLLOW_GRACE_S.read(environ)),
        options=options,
    )
