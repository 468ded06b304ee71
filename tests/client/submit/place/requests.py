"""Requests of one task, with a code archive and a mirrored folder of files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from algorun_client.files.inputs import HashedFile
from algorun_client.request.codec import identity
from algorun_client.request.model import Kind, Request, TaskAddress, Upload
from algorun_client.submit.read.material import fingerprint

ADDRESS = TaskAddress(bucket="b", project="p", task="t")
FILES = {"a": "A", "b": "BB", "c": "CCC"}


def hashes(files: dict[str, str]) -> str:
    return folder(files).removesuffix("/").replace("/train/", "/train-hashes/") + ".json"


def folder(files: dict[str, str]) -> str:
    return ADDRESS.input(
        "train",
        fingerprint([HashedFile(name=name, path=Path(name), size=0, sha256=text) for name, text in files.items()]),
    )


def maker(argument: str = "1", files: dict[str, str] | None = None):
    """Requests that differ in one argument, with a code archive and a mirrored folder of files."""
    files = FILES if files is None else files
    contents = {ADDRESS.code("0"): b"code" + argument.encode()}
    contents |= {folder(files) + name: text.encode() for name, text in files.items()}
    uploads = tuple(
        Upload(uri=uri, size=len(data), sha256=hashlib.sha256(data).hexdigest(), data=data)
        for uri, data in contents.items()
    )

    def make(number: int) -> Request:
        create = {"TrainingJobName": f"p-t-{number:04d}", "HyperParameters": {"x": argument}}
        own = identity(Kind.TRAINING, create, uploads)
        create["Environment"] = {"ALGORUN_REQUEST_ID": own}
        return Request(
            kind=Kind.TRAINING,
            address=ADDRESS,
            number=number,
            job=create["TrainingJobName"],
            create=create,
            uploads=uploads,
            mirrors=(folder(files),),
        )

    return make
