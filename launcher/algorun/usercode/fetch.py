"""Fetches the user's code into the code folder, completely or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from algorun.common.archive_members import DAMAGE
from algorun.common.archives import damaged, is_tar, staged, unpack
from algorun.common.errors import UserError
from algorun.job.usercode import Setup, address

CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 60
RETRIES = 4
MOST_OBJECTS = 100_000

CHECK_DISK = "check space and permissions on this host's disk"
# What helps against an error code of S3.
FIXES = {
    "403": "allow the job's role s3:GetObject on it (and kms:Decrypt where it is encrypted)",
    "AccessDenied": "allow the job's role s3:GetObject on it (and kms:Decrypt where it is encrypted)",
    "404": "check bucket and key",
    "NoSuchKey": "check bucket and key",
    "NoSuchBucket": "check bucket and key",
    "301": "the bucket is in another region: set AWS_REGION",
    "PermanentRedirect": "the bucket is in another region: set AWS_REGION",
    "ExpiredToken": "renew the credentials",
    "InvalidAccessKeyId": "check the credentials",
    "SignatureDoesNotMatch": "check the credentials",
}


def make_folder(code: Path) -> None:
    """Creates the code folder. Raises UserError."""
    try:
        code.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            str(code), f"cannot be created: {error.strerror}", fix="make its parent folder writable"
        ) from None


def fetch(setup: Setup, environ: Mapping[str, str]) -> str:
    """Creates and fills the code folder. Returns the SHA-256 of a single file, "" for a folder. Raises UserError."""
    code = Path(setup.code)
    make_folder(code)
    parts = address(setup.uri, setup.option)
    if parts.scheme == "s3":
        with tempfile.TemporaryDirectory(prefix="algorun-fetch-") as folder:
            return _place(_download(setup, Path(folder), environ), code, setup)
    source = Path(unquote(parts.netloc + parts.path) if parts.scheme == "file" else setup.uri)
    if not os.path.exists(source):  # Path.exists() raises ValueError on impossible names (a zero byte)
        raise UserError(setup.option, f"{setup.uri!r} does not exist on this host", fix="name a folder or a tar file")
    return _place(source, code, setup)


def _place(source: Path, code: Path, setup: Setup) -> str:
    """Copies a folder's files or a single file into the code folder, or unpacks an archive there; returns as `fetch`."""
    if source.is_dir():
        if source.resolve() == code.resolve():
            return ""
        if code.resolve().is_relative_to(source.resolve()):
            raise UserError(
                setup.option, f"{setup.uri!r} contains the code folder {code} itself", fix="name a folder beside it"
            )
        try:
            with staged(code) as stage:
                shutil.copytree(source, stage, dirs_exist_ok=True, symlinks=True)
        except (OSError, shutil.Error) as error:
            raise UserError(setup.option, f"{setup.uri!r} cannot be copied: {error}", fix=CHECK_DISK) from None
        return ""
    if not source.is_file():
        raise UserError(setup.option, f"{setup.uri!r} is a device, a pipe or the like", allowed="a file or a folder")
    try:
        digest = _sha256(source)
        if not is_tar(source):
            if not source.name.endswith((".py", ".sh")):
                raise UserError(
                    setup.option, f"{setup.uri!r} is not a tar file", allowed="a folder, a .py, a .sh or a tar file"
                )
            with staged(code) as stage:
                shutil.copy2(source, stage / source.name)
            return digest
    except DAMAGE as error:
        raise UserError(
            setup.option, f"{setup.uri!r} {damaged(error)}", allowed="tar, tar.gz, tar.bz2, tar.xz"
        ) from None
    except OSError as error:
        raise UserError(setup.option, f"{setup.uri!r} cannot be copied: {error.strerror}", fix=CHECK_DISK) from None
    where = f"{setup.option} {setup.uri!r}"
    unpack(source, code, where, place="the code folder", fix="put data into a channel instead")
    return digest


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _client(region: str, environ: Mapping[str, str]) -> Any:  # boto3 makes its classes at run time
    """An S3 client. boto3 itself reads AWS_ENDPOINT_URL_S3; sagemaker-training's name for it is S3_ENDPOINT_URL."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise UserError("boto3", "is not installed, but the code is in S3", fix="pip install boto3") from None
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S, retries={"total_max_attempts": RETRIES}
    )
    endpoint = environ.get("S3_ENDPOINT_URL") or None
    return boto3.session.Session().client("s3", region_name=region or None, endpoint_url=endpoint, config=config)


def _download(setup: Setup, folder: Path, environ: Mapping[str, str]) -> Path:
    """Downloads one object, or all objects below a prefix; returns the file or the folder."""
    parts = address(setup.uri, setup.option)
    bucket, key = parts.netloc, parts.path.lstrip("/")
    if not bucket or not key:
        raise UserError(
            setup.option, f"{setup.uri!r} is not an S3 object", allowed="such as s3://bucket/path/sourcedir.tar.gz"
        )
    try:
        client = _client(setup.region, environ)
        if not key.endswith("/"):
            target = folder / (os.path.basename(key) or "source")
            try:
                client.download_file(bucket, key, str(target))
                return target
            except Exception as error:
                if _code(error) not in ("404", "NoSuchKey"):
                    raise
                if not client.list_objects_v2(Bucket=bucket, Prefix=f"{key}/", MaxKeys=1).get("Contents"):
                    raise
        return _download_all(client, bucket, key.rstrip("/") + "/", folder / "objects", setup)
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:  # this host's disk; botocore's OSErrors have no errno
            raise UserError(setup.option, f"{setup.uri}: {error.strerror}", fix=CHECK_DISK) from None
        raise _explained(setup, error) from None


def _download_all(client: Any, bucket: str, prefix: str, folder: Path, setup: Setup) -> Path:  # client: see _client
    folder.mkdir()
    count = 0
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", ()):
            name = str(item["Key"])[len(prefix) :]
            if not name or name.endswith("/"):
                continue
            count += 1
            if count > MOST_OBJECTS:
                raise UserError(
                    setup.option, f"{setup.uri} holds more than {MOST_OBJECTS} objects", fix="pack them into a tar.gz"
                )
            if name.startswith("/") or ".." in name.split("/"):
                raise UserError(
                    setup.option, f"{setup.uri}: object {name!r} would lie outside the code folder", fix="rename it"
                )
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            client.download_file(bucket, item["Key"], str(target))
    if not count:
        raise UserError(setup.option, f"{setup.uri} does not exist", fix=FIXES["NoSuchKey"])
    return folder


def _code(error: Exception) -> str:
    """S3's error code, "" if the error did not come from S3."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def _explained(setup: Setup, error: Exception) -> UserError:
    """An error of botocore in one line, with a fix. botocore's text may hold a signed address, so it is not shown."""
    name, code = type(error).__name__, _code(error)
    if code:
        return UserError(setup.option, f"{setup.uri}: S3 answers {code}", fix=FIXES.get(code, "see S3's error codes"))
    if "Credentials" in name or name == "TokenRetrievalError":
        return UserError(
            setup.option,
            f"{setup.uri}: no AWS credentials",
            fix="give the job a role, or set AWS_ACCESS_KEY_ID and its secret",
        )
    if "Timeout" in name or "Connection" in name or name in ("HTTPClientError", "SSLError", "ProxyConnectionError"):
        return UserError(
            setup.option, f"{setup.uri}: S3 cannot be reached ({name})", fix="check the network, or the S3 endpoint"
        )
    return UserError(setup.option, f"{setup.uri}: {name}", fix="check the address and the region")
