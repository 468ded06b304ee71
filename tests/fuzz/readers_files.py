"""Readers of files and streams from programs around a job: archives, results, logs, settings of the building machine."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import io
import json
import lzma
import os
import shutil
import tarfile
from pathlib import Path
from types import ModuleType

from algorun.common.archives import unpack
from algorun.common.errors import UserError
from algorun.control.failures.failure import Failure
from algorun.control.failures.last_words import last_words
from algorun.host.output.logs import LONGEST_LINE, Lines, without_secrets
from algorun.job.paths import Paths
from algorun.job.usercode import Setup
from algorun.outcome import report
from algorun.usercode.fetch import fetch

from . import mutations
from .mutations_tar import BLOCK, as_tar
from .reader import PART, Reader, parts, scratch

ROOT = Path(__file__).resolve().parent.parent.parent
PACK = {b"p": bytes, b"z": lambda data: gzip.compress(data, 1), b"b": bz2.compress, b"x": lzma.compress}
ONE_LINE = 4096  # characters: the closing line is one of a log


def script(path: str) -> ModuleType:
    """A program of docker/, imported from its file."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fresh() -> tuple[Path, Path]:
    """A folder with nothing in it but an empty `code`."""
    folder = scratch() / "unpack"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "code").mkdir(parents=True)
    return folder, folder / "code"


def inside(folder: Path, code: Path, *others: str) -> None:
    """Nothing lies beside the code folder, and no link in it leads out."""
    assert sorted(os.listdir(folder)) == sorted(("code", *others))
    root = os.path.realpath(code)
    for parent, folders, files in os.walk(code):
        for name in (*folders, *files):
            real = os.path.realpath(os.path.join(parent, name))
            assert real == root or real.startswith(root + "/"), f"{name} leads to {real}"


def read_archive(data: bytes) -> None:
    """A tar file, its first byte the compression (`p` plain, `z`, `b`, `x`; anything else: the rest as it is)."""
    folder, code = fresh()
    source = folder / "source"
    source.write_bytes(PACK.get(data[:1], bytes)(data[1:]))
    try:
        unpack(source, code, "source", place="the code folder", fix="put data into a channel instead")
    except UserError:
        assert os.listdir(code) == []
    inside(folder, code, "source")


def read_source(data: bytes) -> None:
    """The same file as code that a job names by its path."""
    folder, code = fresh()
    source = folder / "source"
    source.write_bytes(PACK.get(data[:1], bytes)(data[1:]))
    try:
        fetch(Setup(str(source), str(code), "train.py"), {})
    except UserError:
        assert os.listdir(code) == []
    inside(folder, code, "source")


def tar(*members: tuple[str, bytes, str], form: int = tarfile.GNU_FORMAT) -> bytes:
    """A plain tar file of (name, type, text or link)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as packed:
        for name, kind, text in members:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, 0o644
            if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                info.linkname = text
            elif kind == tarfile.REGTYPE:
                info.size = len(text)
            packed.addfile(info, io.BytesIO(text.encode()))
    data = out.getvalue().rstrip(b"\0")
    return data + b"\0" * (-len(data) % BLOCK + 2 * BLOCK)  # without the padding to 10 KiB


def archives() -> list[bytes]:
    honest = tar(("train.py", tarfile.REGTYPE, "x"), ("lib", tarfile.DIRTYPE, ""), ("lib/a.py", tarfile.REGTYPE, "y" * 600),
                 ("lib/l", tarfile.SYMTYPE, "../train.py"), ("hard.py", tarfile.LNKTYPE, "train.py"))  # fmt: skip
    long = tar(("d/" * 60 + "x.py", tarfile.REGTYPE, "x"), ("l", tarfile.SYMTYPE, "y" * 120))
    pax = tar(("ü/" * 60 + "x.py", tarfile.REGTYPE, "x"), form=tarfile.PAX_FORMAT)
    plain = [b"p" + each for each in (honest, long, pax)]
    return [*plain, b"z" + honest, *(b"-" + PACK[kind](honest) for kind in (b"z", b"b", b"x")), b"-print('no tar')\n"]


def archive(data: bytes, random) -> bytes:
    """The tar within, or what it is packed in."""
    if data[:1] in PACK and random.random() < 0.95:
        changed = as_tar(data[1:], random)
        return random.choice((data[:1], data[:1], data[:1], b"p", b"z")) + changed
    return data[:1] + mutations.raw(data[1:], random)


def read_results(data: bytes) -> None:
    """Small files that a program or a process of ours leaves: summary.json, result.json, setup.json, failure."""
    paths = Paths(scratch() / "results")
    paths.output_data.mkdir(parents=True, exist_ok=True)
    for path in (paths.summary, paths.output_data / report.RESULT, paths.failure):
        path.write_bytes(data)
    said = report.user_failure_text(paths)
    assert len(said) <= report.LONGEST_USER_TEXT
    assert said.replace("\n", "").replace("\t", "").isprintable()
    shown = report.figures(paths.summary)
    assert shown.isprintable(), shown
    assert len(shown) <= ONE_LINE
    assert isinstance(report.read_result(paths), dict)


RESULTS = [
    json.dumps(value).encode()
    for value in (
        {"val_accuracy": 0.97, "val_loss": 0.1, "epochs": 20, "name": "vit"},
        {"kind": "ok", "code": 0, "line": "ok nnodes=1 world_size=1"},
        {"source": "ab" * 32, "error": ""},
    )
] + [b"\x1b[31mException during training:\x1b[0m\r\n\tno \xff data\x00\n"]


def read_output(data: bytes) -> None:
    """What a rank prints, in pieces: nothing is lost, nothing is kept for ever, and the blame finds a line."""
    lines, seen = Lines(), []
    for piece in data.split(PART):
        whole = lines.feed(piece)
        assert not whole or whole.endswith(b"\n")
        seen.append(whole)
        assert len(lines._rest) <= LONGEST_LINE + 1
    seen.append(lines.end())
    out = b"".join(seen)
    drawing = b"\r\n\b "  # a bar that is wiped out is spaces
    assert out.translate(None, drawing) == data.replace(PART, b"").translate(None, drawing)
    text = without_secrets(out).decode("utf-8", "replace")
    words = last_words(text)
    failure = Failure("exit", "algo-1", 1, words, 0, text)
    assert isinstance(failure.secondary, bool)
    assert len(failure.text()) <= 1024


OUTPUTS = [
    b"step 1\n\x1eloss 0.5\r\n\x1e 10%|#|\r 20%|##|\r\x1edone",
    b"Collecting x from https://user:secret@host/x?X-Amz-Signature=abc&b=1\n",
    b"RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:1\x1eDistNetworkError: timed out waiting 5 for recv\n[rank0]:[W1121 x",
]


def read_host_settings(data: bytes) -> None:
    """What `pip config list` and `apt-config dump` print on somebody's machine."""
    pip, apt = (part.decode("utf-8", "replace") for part in parts(data, 2))
    values = HOST_SETTINGS.pip_values(pip)
    kept = HOST_SETTINGS.pip_conf(values)
    assert not kept or kept.startswith("[global]\n")
    HOST_SETTINGS.apt_conf(apt)
    HOST_SETTINGS.wheelhouse(values)
    HOST_SETTINGS.ca_file({}, values)
    DRIVER.with_all_hosts(pip.split())


HOST_SETTINGS, DRIVER = script("docker/host_settings.py"), script("docker/sdk-v3/driver_mpirun.py")
SETTINGS = [
    PART.join(
        (
            b"global.index-url='https://host/simple'\n:env:.proxy='http://p:1'\nglobal.find-links='/w\\n/v'\ninstall.timeout='5'\n",
            b'Acquire::http::Proxy "http://p";\nAcquire::https "";\n',
        )
    ),
    PART.join((b"--host algo-1:1,algo-2:1 -np 1 -x A=1", b"")),
]

READERS = [
    Reader("archive", read_archive, archives, archive, 250),
    Reader("fetched-file", read_source, archives, archive, 120),
    Reader("result-files", read_results, lambda: RESULTS, mutations.as_json, 1000),
    Reader("output-of-ranks", read_output, lambda: OUTPUTS, mutations.in_pieces(mutations.raw), 1000),
    Reader("host-settings", read_host_settings, lambda: SETTINGS, mutations.of_parts(mutations.raw), 1000),
]
