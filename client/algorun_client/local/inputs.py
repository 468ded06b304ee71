"""Brings a job's inputs to its hosts: copies, links, shards, and the archive of the code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from algorun.common.codec import loads
from algorun.common.json_values import rows, table, text
from algorun_client.aws.addresses import below
from algorun_client.aws.api import ObjectStore
from algorun_client.common.errors import NotFound

from .folder_store import FolderStore
from .job_description import JobDescription, LocalInput

SUBMIT_DIRECTORY = "sagemaker_submit_directory"
SUBMITTED = "submitted"  # a folder beside the hosts' trees: the code as it was submitted


def bring(
    job: JobDescription,
    store: ObjectStore,
    trees: Mapping[str, Path],
    check: Callable[[], None],
    *,
    by_links: bool,
) -> None:
    """Fills the inputs' folders. `check` is called before every object and ends the work by an exception.

    `by_links`: FastFile inputs are links to the objects, where those are files of this machine.
    """
    for each in job.inputs:
        if each.mounted is not None:  # by the hosts
            continue
        hosts = [host for host in job.cluster.hosts if each.hosts is None or host in each.hosts]
        for number, (uri, name) in enumerate(objects(each, store)):
            for host in [hosts[number % len(hosts)]] if each.shard else hosts:
                check()
                path = trees[host] / each.folder / name
                if by_links and each.link and isinstance(store, FolderStore):
                    store.link(uri, path)
                else:
                    store.download(uri, path)


def objects(source: LocalInput, store: ObjectStore) -> Iterator[tuple[str, str]]:
    """Address and file name of each object, in the order of the keys. A key that ends with a slash stands for a folder.

    Raises NotFound without any, and ValueError for a name that leads out of the folder.
    """
    found = list(_manifest(source.uri, store) if source.manifest else _below(source.uri, store))
    if not found:
        raise NotFound("NoSuchKey", f"no objects below {source.uri}")
    for _, name in found:
        if name.startswith("/") or ".." in name.split("/"):
            raise ValueError(f"input {source.name}: object {name!r} would lie outside its folder")
    return iter(found)


def _below(prefix: str, store: ObjectStore) -> Iterator[tuple[str, str]]:
    for each in store.list(prefix):
        if not each.uri.endswith("/"):
            yield each.uri, below(each.uri, prefix)


def _manifest(uri: str, store: ObjectStore) -> Iterator[tuple[str, str]]:
    """A JSON list: {"prefix": S3 prefix}, then names below it."""
    try:
        first, *names = rows(loads(store.get(uri))) or [None]
        prefix = text(table(first).get("prefix"))
        found = [(prefix + text(name), text(name)) for name in names]
    except ValueError as error:
        raise ValueError(f'{uri} is no manifest ({error}); allowed: [{{"prefix": "s3://.."}}, "name", ..]') from None
    yield from found


def local_code(hyperparameters: Mapping[str, str], store: ObjectStore, folder: Path, seen: Path) -> dict[str, str]:
    """The hyperparameters with a file in place of the code's address. Downloads the code to `folder`.

    `seen`: the path by which the hosts see that folder.
    """
    values = dict(hyperparameters)
    uri = _plain(values.get(SUBMIT_DIRECTORY, ""))
    if not uri.startswith("s3://"):
        return values
    found = list(_below(uri, store))
    if not found:
        raise NotFound("NoSuchKey", f"no code at {uri}")
    for each, name in found:
        store.download(each, folder / name)
    single = len(found) == 1 and found[0][0] == uri
    values[SUBMIT_DIRECTORY] = str(seen / found[0][1] if single else seen)
    return values


def _plain(value: str) -> str:
    """SDKs encode hyperparameters as JSON; others send plain text."""
    try:
        return text(loads(value))
    except ValueError:
        return value
