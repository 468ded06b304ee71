"""Why a program does not start: what is missing is named, not the program that is there."""

from __future__ import annotations

import os
from errno import EACCES, ENOENT, ENOEXEC
from pathlib import Path

import pytest

from algorun.common.errors import UserError
from algorun.host.processes.owner import Owner
from algorun.host.processes.program_start import explained
from tests.conftest import FAILS_ALONE, algorun, needs_mpi

TRUE = Path("/bin/true").read_bytes()
ARM = TRUE[:18] + b"\xb7\0" + TRUE[20:]
MUSL = TRUE.replace(b"/lib64/ld-linux-x86-64.so.2", b"/lib99/ld-linux-x86-64.so.2", 1)
X86 = os.uname().machine == "x86_64"
CRLF = "sed -i 's/\\r$//' ./run"


def program(folder: Path, content: bytes, mode: int = 0o755, name: str = "run") -> str:
    (folder / name).write_bytes(content)
    (folder / name).chmod(mode)
    return f"./{name}"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"#!/bin/bash\r\necho hi\r\n", f"./run has Windows line endings (CRLF): its first line names the interpreter '/bin/bash\\r'; fix: save it with Unix line endings: {CRLF}"),
        (b"#!/usr/bin/python9 -u\nprint()\n", "./run: its first line (#!) names the interpreter /usr/bin/python9, which does not exist; fix: name one that"),
        (b"#!/opt/conda/bin/sh\n", "./run: its first line (#!) names the interpreter /opt/conda/bin/sh, which does not exist; fix: #!/"),
        pytest.param(ARM, "./run is built for aarch64, this host is x86_64; fix: build it for x86_64", marks=pytest.mark.skipif(not X86, reason="x86_64")),
        pytest.param(MUSL, "./run needs the loader /lib99/ld-linux-x86-64.so.2, which does not exist", marks=pytest.mark.skipif(not X86, reason="x86_64")),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(content, says, tmp_path):
    argv = [program(tmp_path, content)]
    owner = Owner(lambda pid, code: None)
    with pytest.raises(UserError) as found:
        owner.start(argv, os.environ, str(tmp_path), 1, 2, what="program")
    assert str(found.value).startswith(f"program: {says}")
    assert found.value.code == 64


@pytest.mark.parametrize(
    ("argv", "number", "filename", "says"),
    [
        (["./absent"], ENOENT, "./absent", "program: ./absent: No such file or directory; fix: check that it exists"),
        (["absent"], ENOENT, "absent", "program: absent: No such file or directory; fix: check that it exists"),
        (["./run"], EACCES, "./run", "program: ./run: Permission denied; fix: check that its disk is not mounted with noexec"),
        (["./run"], ENOENT, "{folder}", "program: its folder {folder}: No such file or directory; fix: name a folder"),
        (["./empty"], ENOEXEC, "./empty", "program: ./empty is empty; fix: check what was uploaded"),
        (["./run"], 7, "./run", "program: ./run: Argument list too long"),
    ],
)  # fmt: skip
def test_other_reasons_are_the_systems_words(argv, number, filename, says, tmp_path):
    program(tmp_path, b"binary", name="run")
    program(tmp_path, b"", name="empty")
    error = explained(argv, str(tmp_path), number, filename.format(folder=tmp_path))
    assert str(error).startswith(says.format(folder=tmp_path))


def test_a_script_that_its_interpreter_should_run_is_named_with_it(tmp_path):
    script = program(tmp_path, b"#!/usr/bin/python9\n", 0o644)
    error = explained(["/usr/bin/python9", script], str(tmp_path), ENOENT, "/usr/bin/python9")
    assert str(error).startswith("program: ./run: its first line (#!) names the interpreter /usr/bin/python9, which")


@pytest.mark.slow(but=["native", "mpirun"])
@pytest.mark.parametrize("engine", ["native", "torchrun", pytest.param("mpirun", marks=needs_mpi)])
def test_all_engines_end_with_the_same_code_and_text(engine, tmp_path, nothing_left):
    program(tmp_path, b"#!/bin/bash\r\necho hi\r\n", name="train.sh")
    done = algorun(
        "simulate", "-j", "1x1", "--engine", engine, "train.sh", cwd=tmp_path, ALGORUN_TEST=nothing_left, **FAILS_ALONE
    )
    assert done.code == 64, done.text
    failure = (done.folder / "algo-1" / "output" / "failure").read_text()
    assert failure.startswith("configuration: algo-1, exit 64: program: ./train.sh has Windows line endings (CRLF)")


@pytest.mark.parametrize(
    "content", [b"\n#!/bin/bash\necho started\n", b"#/usr/bin/env bash\necho started\n", b"echo started\n"]
)
def test_a_script_without_an_interpreter_runs_in_the_shell(content, tmp_path, nothing_left):
    program(tmp_path, content, name="train.sh")
    done = algorun("simulate", "-j", "1x1", "train.sh", cwd=tmp_path, ALGORUN_TEST=nothing_left)
    assert "[0 algo-1] started" in done.out, done.text
