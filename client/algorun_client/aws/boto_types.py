"""What the client uses of boto3, which has no types: any call takes AWS's arguments and returns an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from .api import Answer

Call = Callable[..., Answer]


class Paginator(Protocol):
    """A call that has its answer in pages."""

    def paginate(self, **arguments: object) -> Iterable[Answer]: ...


class Events(Protocol):
    """Where functions ask to be called by botocore."""

    def register(self, event: str, function: Callable[..., object]) -> None: ...

    def register_first(self, event: str, function: Callable[..., object]) -> None: ...


class Meta(Protocol):
    """What a client says of itself."""

    endpoint_url: str
    region_name: str
    events: Events


class Client(Protocol):
    """A client of boto3."""

    @property
    def meta(self) -> Meta: ...

    def get_paginator(self, operation_name: str) -> Paginator: ...

    def __getattr__(self, method: str) -> Call: ...


class BotoSession(Protocol):
    """A session of boto3."""

    @property
    def region_name(self) -> str | None: ...

    def client(self, service_name: str, **settings: object) -> Client: ...

    def get_available_partitions(self) -> list[str]: ...

    def get_available_regions(self, service_name: str, partition_name: str) -> list[str]: ...


class Transfer(Protocol):
    """An upload or copy under way."""

    def result(self) -> object: ...

    def cancel(self) -> None: ...


class TransferManager(Protocol):
    """s3transfer's: sends and copies what is large in parts."""

    def upload(
        self, fileobj: object, bucket: str, key: str, *, extra_args: Mapping[str, object] | None = None
    ) -> Transfer: ...

    def copy(
        self, copy_source: Mapping[str, str], bucket: str, key: str, *, extra_args: Mapping[str, object] | None = None
    ) -> Transfer: ...
