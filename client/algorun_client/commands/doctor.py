"""`algorun doctor --aws`: what a job on SageMaker needs of the account, looked at before anything is paid for. It only reads."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from algorun.common.errors import UserError
from algorun_client.common import settings
from algorun_client.common.codes import ClientCode
from algorun_client.common.errors import ApiError, NotFound
from algorun_client.common.refusals import Unanswered, explained
from algorun_client.request.model import FORMAT, FORMAT_PER_GPU, Kind
from algorun_client.submit.look_up.look_up import LABEL, read_format
from algorun_client.submit.read import job_file, regions, submit_options
from algorun_client.submit.read.layers import Given, Layer
from algorun_client.submit.read.spec import HostChoice, TaskSpec, Where

if TYPE_CHECKING:
    from algorun_client.aws.aws_session import AwsSession

ANY_PROGRAM = ("train.py",)  # where neither the line nor the job file names one: its name decides nothing here
WIDTH = 13  # of the topics


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountFinding:
    """Something that was looked at. `code`: what a submit would end with because of it."""

    topic: str
    value: str
    state: str = "ok"  # or warn, fail
    fix: str = ""
    code: int = 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options are those of `submit`: the same line is looked at."""
    parser.add_argument("--aws", action="store_true", help="look at the AWS account; without it: at this machine")
    submit_options.add_options(parser)


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """As `submit_options.split`."""
    own, program = submit_options.split([word for word in words if word != "--aws"])
    return ["--aws", *own], program


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Prints the findings. Returns 0, or the code that submit would end with. Raises UserError for wrong options."""
    findings: list[AccountFinding] = []
    for each in _of_regions(_specs(options, environ), environ):
        findings.append(each)
        if not options.json:
            print(_text(each), flush=True)
    code = next((each.code for each in findings if each.state == "fail"), int(ClientCode.OK))
    if options.json:
        rows = [{"topic": f.topic, "value": f.value, "state": f.state, "fix": f.fix} for f in findings]
        print(json.dumps({"ok": not code, "code": code, "findings": rows}, indent=2))
    return code


def _text(found: AccountFinding) -> str:
    line = f"{found.state:<4}  {found.topic:<{WIDTH}} {found.value}"
    return f"{line}\n      fix: {found.fix}" if found.fix else line


def _specs(options: argparse.Namespace, environ: Mapping[str, str]) -> list[TaskSpec]:
    """The task of the line, or all tasks of the job file where the line names none. Raises UserError."""
    folder = Path.cwd()
    file, flags = job_file.read_job_file(options.file, folder), submit_options.layer(options, str(folder))
    named = options.program or options.shell or options.module or options.task
    tasks = [None] if named or not file.tasks else list(file.tasks)
    made = []
    for task in tasks:
        layer = (
            flags if task is None else Layer({**flags.single, "task": Given("--task", task, str(folder))}, flags.tables)
        )
        words = options.program or (() if named or file.tasks else ANY_PROGRAM)
        spec = regions.make(file, layer, words, folder=str(folder), environ=environ)
        made.append(replace(spec, where=Where.AWS))
    return made


def _of_regions(specs: Sequence[TaskSpec], environ: Mapping[str, str]) -> Iterator[AccountFinding]:
    """The findings of each region. Where another region has the quota, one that is too small ends nothing."""
    if not any(each.elsewhere for each in specs):
        yield from _findings(specs, environ)
        return
    regions = [list(each) for each in zip(*[(spec, *spec.elsewhere) for spec in specs], strict=True)]
    found = [list(_findings(each, environ)) for each in regions]
    has_quota = any(not any(each.code == ClientCode.QUOTA for each in listed) for listed in found)
    for each in (each for listed in found for each in listed):
        if has_quota and each.code == ClientCode.QUOTA:
            yield replace(each, state="warn", fix=f"{each.fix}; or leave it: a submit takes the next region", code=0)
        else:
            yield each


def _findings(specs: Sequence[TaskSpec], environ: Mapping[str, str]) -> Iterator[AccountFinding]:
    """In the order in which a submit would meet them. Where nobody answers, nothing more is asked."""
    from algorun_client.aws import aws_session

    first = specs[0]
    try:
        session = aws_session.open_session(
            first.profile, first.region or environ.get("AWS_REGION", ""), aws_session.FOLLOWING
        )
        session.account()
    except UserError as error:
        yield _failed("region" if error.where == "--region" else "credentials", error)
        return
    yield AccountFinding(
        topic="credentials", value=f"{session.caller()}{f' (profile {first.profile})' if first.profile else ''}"
    )
    yield AccountFinding(topic="region", value=session.region)
    look = _Look(session, environ)
    asked: dict[tuple[str, ...], Iterator[AccountFinding]] = {}
    for spec in specs:
        asked.setdefault(("role", spec.role), look.role(spec.role))
        asked.setdefault(("bucket", spec.bucket), look.bucket(spec))
        asked.setdefault(("key", spec.kms_key), look.key(spec.kms_key))
        needs = max(FORMAT_PER_GPU if each.launch.per_gpu else FORMAT for each in specs if each.image == spec.image)
        asked.setdefault(("image", spec.image), look.image(spec.image, needs))
    for each in sorted(asked, key=lambda each: ("role", "bucket", "key", "image").index(each[0])):
        yield from asked[each]
    yield from look.quotas(specs)


def _failed(topic: str, error: UserError) -> AccountFinding:
    return AccountFinding(
        topic=topic, value=f"{error.where}: {error.what}", state="fail", fix=error.fix or error.allowed, code=error.code
    )


class _Look:
    """One look at each part of an account."""

    def __init__(self, session: AwsSession, environ: Mapping[str, str]) -> None:
        self._session, self._environ = session, environ

    def role(self, given: str) -> Iterator[AccountFinding]:
        """The role, and whether SageMaker may take it: also of an ARN, which submit sends as it is."""
        from algorun_client.aws import job_role

        name = given or settings.ROLE.read(self._environ)
        try:
            own = f":{self._session.account()}:role/"
            arn = self._session.role_arn(name.rpartition("/")[2] if own in name else name)
        except UserError as error:
            if isinstance(error, job_role.UnfitRole):
                yield _failed("role", self._with_commands(error))
            elif isinstance(error, Unanswered) or not name.startswith("arn:"):
                yield _failed("role", error)
            else:  # GetRole is a right of its own, and submit does without it
                yield AccountFinding(
                    topic="role", value=f"{name}; it cannot be read: {error.what}", state="warn", fix=error.fix
                )
            return
        foreign = "" if own in arn else ": of another account, so its trust was not looked at"
        yield AccountFinding(topic="role", value=f"{arn}{foreign}", state="warn" if foreign else "ok")

    def _with_commands(self, error: UserError) -> UserError:
        place = f"--account {self._session.account()} --region {self._session.region}"
        fix = (
            f"algorun role --for trust {place} > trust.json && algorun role {place} > policy.json && "
            "aws iam create-role --role-name algorun --assume-role-policy-document file://trust.json && "
            "aws iam put-role-policy --role-name algorun --policy-name algorun --policy-document file://policy.json; "
            "then --role algorun"
        )
        return UserError(error.where, error.what, fix=fix, code=error.code)

    def bucket(self, spec: TaskSpec) -> Iterator[AccountFinding]:
        """The bucket of the tasks."""
        from algorun_client.aws import account

        bucket = spec.bucket or self._session.default_bucket()
        try:
            account.check_bucket(self._session, bucket, spec.folder)
        except NotFound:
            fix = f"aws s3 mb s3://{bucket} --region {self._session.region}, or submit with --create-bucket"
            yield AccountFinding(
                topic="bucket", value=f"{bucket} does not exist", state="fail", fix=fix, code=ClientCode.USAGE
            )
        except UserError as error:
            yield _failed("bucket", error)
        else:
            yield AccountFinding(topic="bucket", value=bucket)

    def key(self, key: str) -> Iterator[AccountFinding]:
        """The KMS key, if there is one."""
        from algorun_client.aws import account

        if not key:
            return
        try:
            yield AccountFinding(topic="KMS key", value=account.check_key(self._session, key))
        except UserError as error:
            yield _failed("KMS key", error)

    def image(self, image: str, needs: int) -> Iterator[AccountFinding]:
        """The image, its digest, and whether its launcher reads requests of this format."""
        push = "./build.sh push --repository algorun:0.2.0 --create, in a checkout; it prints the --image"
        if not image:
            yield AccountFinding(topic="image", value="none is named", state="fail", fix=push, code=ClientCode.USAGE)
            return
        try:
            digest = self._session.image_digest(image)
            labels = self._session.image_labels(image) if digest else {}
        except UserError as error:
            yield _failed("image", error)
            return
        if digest is None:
            yield AccountFinding(topic="image", value=f"{image}: not in ECR, so it was not looked at", state="warn")
            return
        if LABEL not in labels:
            text = f"{image}: no image of algorun's, its label {LABEL} is missing"
            yield AccountFinding(topic="image", value=text, state="warn", fix=push)
        elif read_format(labels) < needs:
            text = f"{image} is too old: it reads requests up to format {labels[LABEL]}, and this one has {needs}"
            yield AccountFinding(topic="image", value=text, state="fail", fix=push, code=ClientCode.USAGE)
        else:
            yield AccountFinding(topic="image", value=f"{image.partition('@')[0]} ({digest})")

    def quotas(self, specs: Sequence[TaskSpec]) -> Iterator[AccountFinding]:
        """The account's limit for each type of host. What other jobs hold at the moment is not counted."""
        from algorun_client.aws import account

        wanted: dict[str, int] = {}
        for spec in specs:
            for hosts_of_job in _ways(spec):
                for name, hosts in _limits(spec, hosts_of_job):
                    wanted[name] = max(wanted.get(name, 0), hosts)
        if not wanted:
            yield AccountFinding(
                topic="instances",
                value="no instance type is named, so no quota was looked at",
                state="warn",
                fix="--instance TYPE",
            )
            return
        try:
            found = account.quotas(self._session, wanted)
        except ApiError as error:
            refused = explained(error)
            fix = "" if isinstance(refused, Unanswered) else "ask for the right servicequotas:ListServiceQuotas"
            text = f"cannot be read ({error}); SageMaker says it when the job is created"
            yield AccountFinding(topic="quota", value=text, state="warn", fix=fix)
            return
        needed = _needed(specs, {name: quota.value for name, quota in found.items()})
        for name, hosts in wanted.items():
            quota = found.get(name)
            if quota is None:
                yield AccountFinding(topic="quota", value=f"{name}: Service Quotas has none of this name", state="warn")
            elif quota.value < hosts:
                less = "fewer or other instances" if name in needed else "leave it: a submit takes the next hosts"
                fix = (
                    f"aws service-quotas request-service-quota-increase --service-code sagemaker --quota-code {quota.code} "
                    f"--desired-value {hosts} --region {self._session.region}; or {less}"
                )
                text = f"{name}: {quota.value:g}, and {hosts} {'is' if hosts == 1 else 'are'} asked for"
                if name in needed:
                    yield AccountFinding(topic="quota", value=text, state="fail", fix=fix, code=ClientCode.QUOTA)
                else:
                    yield AccountFinding(topic="quota", value=text, state="warn", fix=fix)
            else:
                yield AccountFinding(topic="quota", value=f"{name}: {quota.value:g}")


def _ways(spec: TaskSpec) -> list[tuple[HostChoice, ...]]:
    """The hosts of each type that the job may get: those that are asked for first, then those that a submit takes instead."""
    return [spec.resources.by_type, *((each,) for each in spec.resources.others)]


def _needed(specs: Sequence[TaskSpec], values: Mapping[str, float]) -> set[str]:
    """The quotas without which a job gets no hosts at all. `values`: what each quota is. One of an unknown name is enough."""
    needed: set[str] = set()
    for spec in specs:
        short = [
            {name for name, hosts in _limits(spec, way) if values.get(name, math.inf) < hosts} for way in _ways(spec)
        ]
        if all(short):
            needed.update(*short)
    return needed


def _limits(spec: TaskSpec, by_type: Sequence[HostChoice]) -> Iterator[tuple[str, int]]:
    """The names of the quotas that a job on these hosts counts for, as Service Quotas has them, and its hosts."""
    resources = spec.resources
    usage = (
        "processing job" if spec.kind is Kind.PROCESSING else "spot training job" if resources.spot else "training job"
    )
    for each in by_type:
        if not each.instance:
            continue
        yield f"{each.instance} for {usage} usage", each.hosts
        if resources.keep_alive_s is not None:
            yield f"{each.instance} for training warm pool usage", each.hosts
