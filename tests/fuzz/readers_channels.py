"""Readers of what a client sends along: archives in channels, a file of arguments, the inputs of a Processing job."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random as randoms
import shutil
import zipfile
from pathlib import Path

from algorun.common.errors import UserError
from algorun.job import args_file, channels
from algorun.job.channels import Channel
from algorun.job.hyperparameters import LONGEST
from algorun.job.paths import Paths
from algorun.usercode.extract import DONE, extract

from . import mutations
from .reader import PART, Reader, parts, scratch
from .readers_files import PACK, archive, archives, inside

ZIP = b"k"  # first byte of an input: the rest is a zip file


def read_channel(data: bytes) -> None:
    """An archive in a channel (its first byte the compression, as in `read_archive`), and the list of what is done."""
    packed, done = parts(data, 2)
    folder = scratch() / "channel"
    shutil.rmtree(folder, ignore_errors=True)
    root = folder / "code"
    root.mkdir(parents=True)
    name = "a.zip" if packed[:1] == ZIP else "a.tar"
    (root / name).write_bytes(PACK.get(packed[:1], bytes)(packed[1:]))
    if done:
        (root / DONE).write_bytes(done)
    try:
        extract(Channel("train", str(root), "File"), lambda _: None)
    except UserError:
        assert sorted(os.listdir(root)) == sorted([name, *([DONE] if done else [])])
    inside(folder, root)


def zip_file(*names: str, kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind) as packed:
        for name in names:
            packed.writestr(zipfile.ZipInfo(name), "" if name.endswith("/") else "text " * 20, kind)
    return out.getvalue()


def channel_seeds() -> list[bytes]:
    lists = [b"", b'{"files": {"a.tar": [10, 20]}, "inner": ["b.tar"]}']
    zips = [zip_file("x.txt", "deep/", "deep/y.txt"), zip_file("x.txt", "b.zip", kind=zipfile.ZIP_STORED), zip_file()]
    tars = [each for each in archives() if PART not in each]
    return [PART.join((each, lists[at % 2])) for at, each in enumerate([*tars, *(ZIP + each for each in zips)])]


def changed(data: bytes, random: randoms.Random) -> bytes:
    """The archive, or now and then the list of what is done."""
    packed, done = parts(data, 2)
    if random.random() < 0.1:
        done = mutations.as_json(done or b"{}", random)
    elif packed[:1] == ZIP:
        packed = ZIP + mutations.raw(packed[1:], random)
    else:
        packed = archive(packed, random)
    return PART.join((packed.replace(PART, b"."), done))


def read_args(data: bytes) -> None:
    """A file of arguments: every word can be passed to a process."""
    code = scratch() / "args"
    code.mkdir(exist_ok=True)
    (code / "args.json").write_bytes(data)
    with contextlib.suppress(UserError):
        for word in args_file.read_args(code, "args.json"):
            assert "\0" not in word
            assert len(word.encode()) < LONGEST


ARGS = [json.dumps(each).encode() for each in (["--epochs", 10, None, True, 0.5], [["a"], {"b": 1}], [], {"a": 1})]


def read_processing(data: bytes) -> None:
    """processingjobconfig.json: names and folders that can be used."""
    paths = Paths(Path(scratch() / "processing-job"))
    paths.processing_config.parent.mkdir(parents=True, exist_ok=True)
    paths.processing_config.write_bytes(data)
    with contextlib.suppress(UserError):
        for name, channel in channels.of_processing(paths).items():
            assert name == channel.name
            assert channel.folder.startswith("/")
            assert "\0" not in channel.folder
            assert ".." not in channel.folder.split("/")
            with contextlib.suppress(UserError):
                channels.to_extract((name,), (), {name: channel})


PROCESSING = [
    json.dumps({"ProcessingJobArn": "arn:aws:sagemaker:1", "ProcessingInputs": inputs}).encode()
    for inputs in (
        [],
        [{"InputName": "a", "S3Input": {"LocalPath": "/opt/ml/processing/input/a", "S3InputMode": "File"}}],
        [{"InputName": "b", "DatasetDefinition": {"LocalPath": "/data", "InputMode": "Pipe"}}, {"InputName": "c"}],
    )
]

READERS = [
    Reader("channel-archive", read_channel, channel_seeds, changed, 250),
    Reader("args-file", read_args, lambda: ARGS, mutations.as_json, 500),
    Reader("processing-inputs", read_processing, lambda: PROCESSING, mutations.as_json, 500),
]
