"""Errors of the calls that the client makes. For what a user can repair see `algorun.common.errors.UserError`."""

from __future__ import annotations


class ApiError(Exception):
    """A call was refused.

    `code`: the service's name of the error, such as `ResourceInUse` or `ThrottlingException`. `message`: its text.
    `operation`: the call, such as `CreateTrainingJob`.
    """

    def __init__(self, code: str, message: str, operation: str = "") -> None:
        self.code, self.message, self.operation = code, message, operation
        super().__init__(f"{operation + ': ' if operation else ''}{code}: {message}")


class BucketDenied(ApiError):
    """A call to a bucket was refused for want of a right: `right`, such as `s3:ListBucket`."""

    def __init__(self, refused: ApiError, right: str, bucket: str) -> None:
        super().__init__(refused.code, refused.message, refused.operation)
        self.right, self.bucket = right, bucket


class NotFound(ApiError):
    """The job, log group, bucket or object does not exist."""


class BucketMissing(NotFound):
    """The bucket of a call does not exist."""

    def __init__(self, refused: ApiError, bucket: str) -> None:
        super().__init__(refused.code, refused.message, refused.operation)
        self.bucket = bucket


class Changed(Exception):
    """A file does not hold (any more) what its hash says."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM while a request is sent. The text says what was done, and that the same line goes on.

    `hanging`: threads still wait for an answer, and would keep the process for as long.
    """

    def __init__(self, text: str, *, hanging: bool = False) -> None:
        self.hanging = hanging
        super().__init__(text)


class Exists(ApiError):
    """The name of a job is in use, or an object that must not exist does (If-None-Match)."""
