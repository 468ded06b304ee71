"""The third stage of `submit`: packs the code, hashes the data, and makes the request of any execution."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from algorun.common.plain_text import plain
from algorun_client.aws.service_model import input_shape
from algorun_client.files import archive, inputs, scratch
from algorun_client.files.archive import Archive
from algorun_client.files.inputs import HashedFile
from algorun_client.files.task_files import described
from algorun_client.request import limits
from algorun_client.request.model import Request, TaskAddress
from algorun_client.submit.look_up.facts import Facts
from algorun_client.submit.read.material import Material
from algorun_client.submit.read.read import SubmitOrder
from algorun_client.submit.read.source_tasks import filled

from .assemble import assemble, task_address

NO_HASH = "0" * 64  # of a file that is not read yet
LARGE_CODE = 200 * 1024 * 1024  # bytes; more is data in most cases
LARGE_DATA = 2_000_000_000  # bytes that are hashed in some 10 s


class Maker:
    """Makes the request of any execution of a task: the same one each time, byte for byte.

    `choice`: the kind of hosts, of those that the task may have.
    """

    def __init__(self, asked: SubmitOrder, facts: Facts, material: Material, choice: int = 0) -> None:
        self.asked, self.facts, self.material, self.choice = asked, facts, material, choice

    def of_choice(self, choice: int) -> Maker:
        """The same for other hosts."""
        return Maker(self.asked, self.facts, self.material, choice)

    def with_contents(self, facts: Facts) -> Maker:
        """The same with what lies in S3 by now: a later job of a series reads that."""
        now = replace(self.facts, contents=facts.contents, unread=facts.unread)
        return Maker(self.asked, now, self.material, self.choice)

    def check(self) -> None:
        """Raises UserError for what is wrong with the request, whichever hosts the job gets."""
        for choice in range(len(self.asked.spec.resources.choices)):
            self.of_choice(choice)(None)

    @property
    def address(self) -> TaskAddress:
        """Where the task is kept."""
        return task_address(self.asked.spec, self.facts)

    def __call__(self, number: int | None) -> Request:
        """The request of an execution; None: its number is unknown. Raises UserError."""
        request = assemble(self.asked.spec.of_choice(self.choice), self.facts, self.material, number)
        limits.check(input_shape(request.kind), request.create, request.unknown)
        return request


@contextmanager
def prepared(asked: SubmitOrder, facts: Facts) -> Iterator[Maker]:
    """Packs the code and hashes the data. What is wrong with the request is said before data is read.

    A large code archive exists until the end of the context.
    """
    asked = asked.of(filled(asked.spec, facts.values))
    with scratch.folder("algorun-submit-") as folder:
        code = packed(asked, folder)
        material = Material(
            started=asked.started,
            code=code,
            inputs=_sizes(asked),
            commit=asked.commit,
            notices=_with_size(asked.notices, code),
        )
        Maker(asked, facts, material).check()
        yield Maker(asked, facts, replace(material, inputs=asked.hashed or hashed(asked)))


def check(asked: SubmitOrder, facts: Facts) -> None:
    """Raises UserError for what is wrong with the request. Packs and hashes nothing."""
    asked = asked.of(filled(asked.spec, facts.values))
    code = Archive(sha256=NO_HASH, size=0, data=b"") if asked.code or asked.started.added else None
    Maker(asked, facts, Material(started=asked.started, code=code, inputs=_sizes(asked))).check()


def hashed(asked: SubmitOrder) -> dict[str, Sequence[HashedFile]]:
    """The files of the local inputs. Raises UserError for one that cannot be read."""
    for name, found in asked.data.items():
        if found.size > LARGE_DATA:
            print(f"algorun: reading --in {name}: {plain(described(found.files))}", file=sys.stderr, flush=True)
    return {name: inputs.hashed(found, f"--in {name}") for name, found in asked.data.items()}


def _sizes(asked: SubmitOrder) -> dict[str, Sequence[HashedFile]]:
    return {
        name: [HashedFile(f.name, f.path, f.size, NO_HASH) for f in found.files] for name, found in asked.data.items()
    }


def packed(asked: SubmitOrder, folder: Path) -> Archive | None:
    """The code of a task; None without any. A large archive is written into `folder`. Raises UserError."""
    if not asked.code and not asked.started.added:
        return None
    if asked.archive is not None and not asked.started.added:
        return asked.archive
    if sum(file.size for file in asked.code) > LARGE_CODE:  # packing and hashing may take minutes
        print(f"algorun: packing {plain(described(asked.code))}", file=sys.stderr, flush=True)
    return archive.pack(asked.code, asked.started.added, folder, "--code")


def _with_size(notices: tuple[str, ...], code: Archive | None) -> tuple[str, ...]:
    if code is None or code.size <= LARGE_CODE:
        return notices
    return (*notices, f"the code archive has {code.size >> 20} MiB; .algorunignore keeps files out, --in takes data")
