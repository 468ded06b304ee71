"""Inputs as the job file and `--in` write them. Pure: nothing is opened."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from posixpath import normpath

from algorun.common.errors import UserError

from . import values
from .layers import Given
from .spec import FileSystem, FileSystemSource, InputSpec, SourceKind, TaskSource

S3_URI = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?", re.DOTALL)
LEFT_BY_TASKS = ("model", "output", "state")
INPUT_WORDS = ("shard", "extract", "mode=fastfile", "mode=file")
FILE_SYSTEMS = {"fsx": FileSystem.FSX, "efs": FileSystem.EFS}
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_FileSystemDataSource.html, and of FSx its MountName.
FILE_SYSTEM_ID, MOUNT_NAME = re.compile(r"fs-[0-9a-f]{8,18}"), re.compile(r"[A-Za-z0-9_-]{1,8}")
FORMS = {FileSystem.FSX: "fsx:fs-ID/MOUNT_NAME/FOLDER", FileSystem.EFS: "efs:fs-ID/FOLDER"}
LONGEST_FOLDER = 4096
KINDS = "s3://BUCKET/KEY, task:TASK/WHAT, fsx:fs-ID/MOUNT_NAME/FOLDER, efs:fs-ID/FOLDER, or a folder"


def source(name: str, of: Given) -> InputSpec:
    """An input: `SOURCE[,shard][,mode=fastfile][,extract]`, or a table with `from` and these as keys. Raises UserError."""
    where, raw = of.where, of.raw
    values.channel_name(where, name)
    if isinstance(raw, Mapping):
        values.known(where, raw, ("from", "shard", "mode", "extract"))
        mode = str(raw.get("mode", "file")).lower()
        if mode not in ("file", "fastfile"):
            raise UserError(f"{where} mode", f"{raw['mode']!r} is not a mode", allowed="file or fastfile")
        given = values.text(f"{where} from", raw.get("from"))
        options = {key for key in ("shard", "extract") if values.flag(f"{where} {key}", raw.get(key, False))} | {
            f"mode={mode}"
        }
    else:
        given, options = _with_options(where, values.text(where, raw))
    kind, address = _address(where, given)
    made = InputSpec(
        name=name, where=where, kind=kind, source=of.absolute(given) if kind is SourceKind.FOLDER else given,
        task=address if isinstance(address, TaskSource) else None,
        file_system=address if isinstance(address, FileSystemSource) else None,
        shard="shard" in options, fastfile="mode=fastfile" in options, extract="extract" in options,
    )  # fmt: skip
    _check_words(made)
    return made


def _check_words(made: InputSpec) -> None:
    """Raises UserError for words that exclude each other, or that a file system does not have."""
    if made.extract and made.fastfile:
        raise UserError(
            made.where,
            "extract needs files on the host's disk, and mode=fastfile leaves them in S3",
            fix="drop one of the two",
        )
    if made.file_system is None:
        return
    for word, is_set, why in (
        ("shard", made.shard, "every host sees all files of a file system"),
        ("extract", made.extract, "the file system is mounted read-only"),
        ("mode=fastfile", made.fastfile, "the files of a file system are read when they are opened anyway"),
    ):
        if is_set:
            raise UserError(made.where, f"{word} is not for {made.source}: {why}", fix="drop it")


def _with_options(where: str, raw: str) -> tuple[str, set[str]]:
    """The source, and the words after it."""
    parts, options = raw.split(","), set[str]()
    while len(parts) > 1 and parts[-1].lower() in INPUT_WORDS:
        options.add(parts.pop().lower())
    if len(parts) > 1 and (near := get_close_matches(parts[-1].lower(), INPUT_WORDS, n=1, cutoff=0.7)):
        raise UserError(
            where, f"unknown word {parts[-1]!r}", allowed=", ".join(INPUT_WORDS), fix=f"did you mean {near[0]!r}?"
        )
    return ",".join(parts), options


def _address(where: str, given: str) -> tuple[SourceKind, TaskSource | FileSystemSource | None]:
    """The kind of a source, and its parts if it is not of S3 or this machine."""
    scheme, colon, rest = given.partition(":")
    if scheme == "task" and colon:
        task, _, path = rest.partition("/")
        what, _, sub = path.strip("/").partition("/")
        if not task or what not in LEFT_BY_TASKS or _climbs(sub):
            raise UserError(
                where,
                f"{given!r} is not something of a task",
                allowed="task:TASK/model, task:TASK/output/SUB, task:TASK/state/SUB",
            )
        return SourceKind.TASK, TaskSource(task=task, what=what, sub=sub)
    if scheme in FILE_SYSTEMS and colon and not rest.startswith("//"):
        return SourceKind.FILE_SYSTEM, _file_system(where, given, FILE_SYSTEMS[scheme], rest)
    if colon and rest.startswith("//"):
        if scheme != "s3" or S3_URI.fullmatch(given) is None:
            raise UserError(where, f"{given!r} is not an address in S3", allowed=KINDS)
        return SourceKind.S3, None
    return SourceKind.FOLDER, None


def _file_system(where: str, given: str, system: FileSystem, rest: str) -> FileSystemSource:
    identity, _, path = rest.partition("/")
    folder = path.strip("/")
    form = FORMS[system]
    if FILE_SYSTEM_ID.fullmatch(identity) is None:
        raise UserError(
            where, f"{given!r}: {identity!r} is not the ID of a file system", allowed=f"{form}, such as fs-0123456789abcdef0"
        )  # fmt: skip
    if _climbs(folder) or len(folder) >= LONGEST_FOLDER:
        raise UserError(where, f"{given!r} is not a folder of a file system", allowed=f"{form}, without . and ..")
    if system is FileSystem.FSX and MOUNT_NAME.fullmatch(folder.partition("/")[0]) is None:
        raise UserError(
            where, f"{given!r} has no mount name after the ID", allowed=form,
            fix="its MountName is in the answer of: aws fsx describe-file-systems",
        )  # fmt: skip
    return FileSystemSource(system=system, identity=identity, folder=f"/{folder}")


def _climbs(sub: str) -> bool:
    return ".." in sub.split("/") or (bool(sub) and normpath(sub) != sub)
