"""A store as JSON, so that another process can open the same one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from algorun_client.aws.api import ObjectStore
from algorun_client.aws.s3_store import S3Store

from .folder_store import FolderStore


def described(store: ObjectStore) -> dict[str, str]:
    """What `opened` needs. It holds no secret: credentials come from the other process's environment."""
    if isinstance(store, FolderStore):
        return {"folders": os.path.abspath(store.root)}
    if isinstance(store, S3Store):
        meta = store.client.meta
        return {
            "endpoint": meta.endpoint_url,
            "region": meta.region_name,
            "account": store.account,
            "bucket": store.bucket,
            "key": store.kms_key,
        }
    raise TypeError(f"{type(store).__name__} is neither a FolderStore nor an S3Store")


def opened(description: Mapping[str, str]) -> ObjectStore:
    """The store that `described` described."""
    if "folders" in description:
        return FolderStore(Path(description["folders"]))
    import boto3

    client = boto3.client("s3", endpoint_url=description["endpoint"], region_name=description["region"])
    return S3Store(client, description["account"], description["key"], description["bucket"])
