"""Addresses of objects: s3://BUCKET/KEY. Pure."""

from __future__ import annotations

import re

from algorun.common.errors import UserError

SCHEME = "s3://"
BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def split(uri: str) -> tuple[str, str]:
    """Bucket and key of an address; the key may be "". Raises UserError."""
    bucket, _, key = uri.removeprefix(SCHEME).partition("/")
    if not uri.startswith(SCHEME) or not BUCKET.fullmatch(bucket):
        raise UserError("S3 address", f"{uri!r} does not begin with a bucket", allowed="s3://BUCKET/KEY")
    return bucket, key


def below(uri: str, prefix: str) -> str:
    """The name of an object below a prefix, as SageMaker names its file: without the prefix and slashes in front.

    An object that is the prefix itself keeps the last part of its key.
    """
    return uri.removeprefix(prefix).lstrip("/") or uri.rsplit("/", 1)[-1]
