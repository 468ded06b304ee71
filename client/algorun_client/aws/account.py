"""What an account must have before its first job: the bucket, the key, the quota. All calls but `make_bucket` only read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from algorun.common.errors import UserError
from algorun.common.json_values import known, number
from algorun_client.common.codes import ClientCode
from algorun_client.common.errors import ApiError, BucketDenied, Exists, NotFound
from algorun_client.common.refusals import Refusal, explained, refusal

from . import fields
from .boto_errors import as_api_errors

if TYPE_CHECKING:
    from .aws_session import AwsSession

FIRST_REGION = "us-east-1"  # the only one that CreateBucket takes without a LocationConstraint, and refuses with it
WRONG_REGION = ("PermanentRedirect", "AuthorizationHeaderMalformed")
QUOTAS_PER_PAGE = 100  # the most that ListServiceQuotas gives


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit of the account, as Service Quotas has it."""

    name: str
    code: str
    value: float


def check_bucket(session: AwsSession, bucket: str, folder: str) -> None:
    """Raises NotFound if the bucket does not exist, UserError if it is another account's or lies in another region.

    `folder`: that of the project. HeadBucket would need the right to list all of the bucket, which `algorun role` gives nobody.
    """
    try:
        with as_api_errors("ListObjectsV2"):
            answer = session.client("s3").list_objects_v2(
                Bucket=bucket, Prefix=f"{folder}/", MaxKeys=1, ExpectedBucketOwner=session.account()
            )
    except NotFound:
        raise
    except ApiError as error:
        if error.code in WRONG_REGION:
            raise _elsewhere(session, bucket, "") from None
        denied = refusal(error) is Refusal.DENIED
        raise explained(BucketDenied(error, "s3:ListBucket", bucket) if denied else error) from None
    region = fields.text(fields.inner(fields.inner(answer, "ResponseMetadata"), "HTTPHeaders"), "x-amz-bucket-region")
    if region and region != session.region:
        raise _elsewhere(session, bucket, region)


def region_of_bucket(session: AwsSession, bucket: str) -> str:
    """The region of a bucket, also of another account's; "" if S3 does not say it to this caller. Raises UserError without an answer.

    S3 names it in the answer to HeadBucket, whether it refuses the call or not.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        answer = session.client("s3").head_bucket(Bucket=bucket)
    except ClientError as error:
        answer = error.response
    except BotoCoreError:  # look_up, which lists the input, meets the same and says what it means
        return ""
    return fields.text(fields.inner(fields.inner(answer, "ResponseMetadata"), "HTTPHeaders"), "x-amz-bucket-region")


def check_region(session: AwsSession, bucket: str) -> None:
    """Raises UserError if the bucket lies in another region than the session's: no job there has it as its bucket."""
    region = region_of_bucket(session, bucket)
    if region not in ("", session.region):
        raise _elsewhere(session, bucket, region)


def _elsewhere(session: AwsSession, bucket: str, region: str) -> UserError:
    """`region`: the bucket's, "" if it is unknown."""
    return UserError(
        f"bucket {bucket}",
        f"lies in {region or 'another region'}, and --region is {session.region}: SageMaker wants job and bucket in one region",
        fix=f"--bucket NAME of one in {session.region} (the default there: {session.default_bucket()}), or --region {region or 'NAME'}",
    )


def make_bucket(session: AwsSession, bucket: str, folder: str) -> bool:
    """Makes the bucket in the session's region, unless the account has it. Returns True if it was made now. Raises UserError."""
    try:
        check_bucket(session, bucket, folder)
    except NotFound:
        pass
    else:
        return False
    where = (
        {} if session.region == FIRST_REGION else {"CreateBucketConfiguration": {"LocationConstraint": session.region}}
    )
    try:
        with as_api_errors("CreateBucket"):
            session.client("s3").create_bucket(Bucket=bucket, **where)
    except ApiError as error:
        if error.code == "BucketAlreadyOwnedByYou":  # somebody was faster
            return False
        if isinstance(error, Exists) or error.code == "BucketAlreadyExists":
            raise UserError(
                "--create-bucket", f"{bucket} is another account's", fix="--bucket NAME, another one"
            ) from None
        raise explained(error) from None
    return True


def check_key(session: AwsSession, key: str) -> str:
    """The ARN of a KMS key that can be used. Raises UserError."""
    try:
        with as_api_errors("DescribeKey"):
            answer = fields.inner(session.client("kms").describe_key(KeyId=key), "KeyMetadata")
    except ApiError as error:
        if error.code == "NotFoundException":
            raise UserError(
                "--kms-key", f"{key!r} does not exist in {session.region}", fix="aws kms list-aliases shows those that do",
                code=ClientCode.CREDENTIALS,
            ) from None  # fmt: skip
        raise explained(error) from None
    state, usage = fields.text(answer, "KeyState"), fields.text(answer, "KeyUsage")
    if state not in ("", "Enabled") or usage not in ("", "ENCRYPT_DECRYPT"):
        raise UserError(
            "--kms-key", f"{key!r} is {state or usage}", allowed="an enabled key for encryption",
            fix=f"aws kms enable-key --key-id {key}", code=ClientCode.CREDENTIALS,
        )  # fmt: skip
    return fields.required(answer, "Arn")


def quotas(session: AwsSession, names: Iterable[str]) -> dict[str, Quota]:
    """SageMaker's quotas of these names, as far as there are any. Raises ApiError, for want of a right too."""
    wanted = set(names)
    found: dict[str, Quota] = {}
    with as_api_errors("ListServiceQuotas"):
        pages = session.client("service-quotas").get_paginator("list_service_quotas")
        for page in pages.paginate(ServiceCode="sagemaker", PaginationConfig={"PageSize": QUOTAS_PER_PAGE}):
            for each in fields.tables(page, "Quotas"):
                name = fields.text(each, "QuotaName")
                if name in wanted:
                    value = known(number, each.get("Value"), 0.0)
                    found[name] = Quota(name, fields.text(each, "QuotaCode"), value)
            if wanted <= found.keys():
                break
    return found
