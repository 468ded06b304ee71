"""What a refused call means for the user: classes of errors, and the error that a command ends with. Pure."""

from __future__ import annotations

import re
from enum import StrEnum

from algorun.common.errors import UserError

from .codes import ClientCode
from .errors import ApiError, BucketDenied, BucketMissing

# AWS's names of errors. botocore's own exceptions keep the name of their class (aws/aws_session.py).
EXPIRED = (
    "ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired", "SSOTokenLoadError",
    "UnauthorizedSSOTokenError", "TokenRetrievalError", "RefreshWithMFAUnsupportedError", "LoginRefreshRequired",
    "LoginTokenLoadError",
)  # fmt: skip
CREDENTIALS = (
    "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound",
    "InvalidClientTokenId", "UnrecognizedClientException", "InvalidAccessKeyId", "SignatureDoesNotMatch",
    "MissingAuthenticationToken", "MissingAuthenticationTokenException", "IncompleteSignature", "NoAuthTokenError",
    "InvalidSignatureException", "InvalidToken", "AuthFailure",
)  # fmt: skip
DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "NotAuthorized", "403", "Forbidden")
QUOTA = ("ResourceLimitExceeded", "LimitExceededException", "ServiceQuotaExceededException")
CAPACITY = ("CapacityError", "InsufficientInstanceCapacity", "InsufficientCapacityException", "ResourceNotAvailable")
THROTTLED = (
    "Throttling", "ThrottlingException", "ThrottledException", "TooManyRequestsException", "RequestLimitExceeded",
    "SlowDown", "BandwidthLimitExceeded", "RequestThrottled", "RequestThrottledException", "PriorRequestNotComplete",
)  # fmt: skip
UNREACHABLE = (
    "EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError", "ConnectionError",
    "HTTPClientError", "ProxyConnectionError", "SSLError", "ResponseStreamingError", "ServiceUnavailable",
    "ServiceUnavailableException", "InternalFailure", "InternalError", "InternalServerError", "InternalServerException",
    "RetriesExceededError", "IncompleteReadError", "ChecksumError", "FlexibleChecksumError",
    "RequestTimeout", "RequestTimeoutException", "500", "502", "503", "504",
)  # fmt: skip
# "The account-level service limit 'ml.p4d.24xlarge for training job usage' is 0 Instances, with current utilization of 0
# Instances and a request delta of 1 Instances."
LIMIT = re.compile(
    r"limit '(?P<name>[^']*)' is (?P<limit>\d+) Instances[^;]* request delta of (?P<asked>\d+) Instances"
)


class Refusal(StrEnum):
    """Why a call was refused."""

    EXPIRED = "expired"  # the credentials were good once
    CREDENTIALS = "credentials"
    DENIED = "denied"  # good credentials without this right
    QUOTA = "quota"
    CAPACITY = "capacity"
    THROTTLED = "throttled"
    UNREACHABLE = "unreachable"  # no answer, or the service is out of order
    INVALID = "invalid"  # the request itself


CODES = {
    **dict.fromkeys(EXPIRED, Refusal.EXPIRED),
    **dict.fromkeys(CREDENTIALS, Refusal.CREDENTIALS),
    **dict.fromkeys(DENIED, Refusal.DENIED),
    **dict.fromkeys(QUOTA, Refusal.QUOTA),
    **dict.fromkeys(CAPACITY, Refusal.CAPACITY),
    **dict.fromkeys(THROTTLED, Refusal.THROTTLED),
    **dict.fromkeys(UNREACHABLE, Refusal.UNREACHABLE),
}

# Nobody could be asked, or nobody would answer these credentials.
UNANSWERED = (Refusal.EXPIRED, Refusal.CREDENTIALS, Refusal.UNREACHABLE)
LOG_IN = "log in again (`aws sso login`, `aws configure`), or name another --profile"
FIXES = {
    Refusal.EXPIRED: (LOG_IN, ClientCode.CREDENTIALS),
    Refusal.CREDENTIALS: (LOG_IN, ClientCode.CREDENTIALS),
    Refusal.DENIED: (
        "ask for the right that the text names; `algorun role --for client --role ROLE` prints what is needed",
        ClientCode.CREDENTIALS,
    ),
    Refusal.QUOTA: (
        "ask for more under Service Quotas, Amazon SageMaker, or use fewer or other instances (--hosts, --instance)",
        ClientCode.QUOTA,
    ),
    Refusal.CAPACITY: ("try again later, in another --region or with another --instance", ClientCode.CAPACITY),
    Refusal.THROTTLED: ("run the same line again in a minute: it goes on where it was", ClientCode.CONTACT_LOST),
    Refusal.UNREACHABLE: (
        "check the network and --region, then run the same line again: it goes on where it was",
        ClientCode.CONTACT_LOST,
    ),
    Refusal.INVALID: ("correct what the text names", ClientCode.USAGE),
}


class Unanswered(UserError):
    """AWS could not be asked: there are no valid credentials, no region or no network. Nothing is known to be wrong."""


def refusal(error: ApiError) -> Refusal:
    """The class of a refused call."""
    return CODES.get(error.code, Refusal.INVALID)


def explained(error: ApiError) -> UserError:
    """The error that a command ends with after a refused call: what was refused, the fix and the exit code."""
    fix, code = FIXES[refusal(error)]
    if isinstance(error, BucketDenied):
        role = f"`algorun role --for client --role ROLE --bucket {error.bucket}` prints all that is needed"
        return UserError(
            f"bucket {error.bucket}",
            f"you have no right to {error.right}, or the bucket is another account's ({error})",
            fix=f"ask for {error.right} ({role}), or name another --bucket",
            code=code,
        )
    if isinstance(error, BucketMissing):
        fix = "`algorun submit --create-bucket ..` makes it, or name another --bucket"
        return UserError(f"bucket {error.bucket}", "does not exist", fix=fix, code=code)
    where = error.operation or "AWS"
    kind = Unanswered if refusal(error) in UNANSWERED else UserError
    return kind(where, f"{error.code}: {error.message}" if error.message else error.code, fix=fix, code=code)


def never_fits(text: str) -> bool:
    """True if one request asks for more instances than the account may ever have: waiting would not help.

    The text may hold the errors of several kinds of hosts, with `;` between them.
    """
    found = list(LIMIT.finditer(text))  # one for each kind of hosts that was tried
    return bool(found) and all(int(each["asked"]) > int(each["limit"]) for each in found)
