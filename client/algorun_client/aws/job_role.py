"""Which role a job gets, and whether SageMaker may take it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from algorun.common.errors import UserError
from algorun_client.common.codes import ClientCode
from algorun_client.common.errors import ApiError, NotFound
from algorun_client.common.refusals import Refusal, explained, refusal

from . import fields

if TYPE_CHECKING:
    from .aws_session import AwsSession

ASSUMED = re.compile(r"arn:[a-z-]+:sts::\d+:assumed-role/([^/]+)/.*")
# What IAM Identity Center makes for people: only its users may take one, whatever else a policy says.
OF_PEOPLE = "AWSReservedSSO_"
SERVICE = "sagemaker.amazonaws.com"
FIX = "--role NAME or ARN of a role for SageMaker; `algorun role --for trust` and `algorun role` print what it needs"


class UnfitRole(UserError):
    """There is no role, or no job can have it."""


def find(session: AwsSession, name: str) -> str:
    """The ARN of a role. `name`: an ARN, a role's name (its path is looked up), or "" for the role that the caller has
    assumed, as in a notebook of SageMaker.

    Raises UserError with code 71 if there is none, or SageMaker may not take it.
    """
    if name.startswith("arn:"):
        return name
    of_caller = not name
    name = name or _assumed(session)
    if name.startswith(OF_PEOPLE):
        own = "none is given, and yours, " if of_caller else ""
        raise _refused(f"{own}{name}, is a role for people (IAM Identity Center): no job can have it")
    try:
        role = session.role(name)
    except NotFound:
        raise _refused(f"{name!r} does not exist in account {session.account()}") from None
    except ApiError as error:
        if refusal(error) not in (Refusal.DENIED, Refusal.INVALID):
            raise explained(error) from None
        raise UserError(
            "--role", f"{name!r}: {error}", fix="give the role's ARN", code=ClientCode.CREDENTIALS
        ) from None
    if not may_be_taken(role.get("AssumeRolePolicyDocument")):
        own = "none is given, and SageMaker may not take yours, " if of_caller else "SageMaker may not take "
        raise _refused(f"{own}{name}: its trust policy does not name {SERVICE}")
    return fields.required(role, "Arn")


def may_be_taken(trust: object) -> bool:
    """True if a trust policy, as boto3 returns it, allows SageMaker (or everybody) to take the role, or is unknown.

    Conditions are not read: what they compare is known only when the job starts.
    """
    if not isinstance(trust, Mapping) or "Statement" not in trust:
        return True
    statements = trust["Statement"]
    listed = statements if isinstance(statements, list) else [statements]
    return any(_allows(each) for each in listed if isinstance(each, Mapping))


def _allows(statement: Mapping[str, object]) -> bool:
    principal = statement.get("Principal")
    if statement.get("Effect") != "Allow":
        return False
    if not isinstance(principal, Mapping):
        return principal == "*"
    services = principal.get("Service")
    named = services if isinstance(services, list) else [services]
    return any(isinstance(each, str) and each.startswith("sagemaker.") for each in named)


def _assumed(session: AwsSession) -> str:
    found = ASSUMED.fullmatch(session.caller())
    if found is None:
        raise _refused(f"none is given, and {session.caller()} is no role")
    return found[1]


def _refused(problem: str) -> UnfitRole:
    return UnfitRole("--role", problem, fix=FIX, code=ClientCode.CREDENTIALS)
