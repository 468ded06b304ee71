"""Archives like those of public reports about other tools (docs/public-reports.md), beside what GNU tar makes of them."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile

import pytest

from algorun.common.archives import unpack
from algorun.common.errors import UserError


def link(name, target):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info, b""


def file(name, text="x", mode=0o644):
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(text), mode
    return info, text.encode()


def folder(name, mode=0o755):
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, mode
    return info, b""


SAFE = {
    "node-tar#54": [folder("bin"), link("bin/npm", "../lib/npm-cli.js"), file("lib/npm-cli.js")],
    "nimarchive#15": [link("broken_symlink", "broken_symlink_destination"), file("a")],
    "turnin#20": [folder("turnin-1"), file("turnin-1/a.c"), link("turnin", "turnin-1")],
    "fleet#47706": [file("app/v1/run"), link("app/current", "v1"), link("app/again", "current")],
    "ngdevkit#99": [file("x86_64/sys/fenv.h"), link("i386/sys/fenv.h", "../../x86_64/sys/fenv.h")],
    "soxr of media-autobuild_suite#230": [
        link("soxr/inst-check-soxr-lsr", "inst-check-soxr"),
        file("soxr/inst-check-soxr"),
    ],
    "read-only folders of the tar format": [folder("ro", 0o555), file("ro/a"), file("ro/b", mode=0o444)],
}
ABSOLUTE = {
    "dotnet-runtime#86724": [file("bin/busybox"), link("bin/sh", "/bin/busybox"), file("etc/motd")],
    "autospec#867": [file("src/a.c"), link("src/config", "/etc/config"), file("src/b.c")],
}


def write(path, members):
    with tarfile.open(path, "w") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))


def tree(root):
    """Every path, and where it leads or what it holds."""
    found = {}
    for top, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = os.path.join(top, name)
            if os.path.islink(path):
                what = f"-> {os.readlink(path)}"
            elif os.path.isdir(path):
                what = "folder"
            else:
                with open(path) as opened:
                    what = opened.read()
            found[os.path.relpath(path, root)] = what
    return found


@pytest.mark.parametrize("report", SAFE)
def test_links_inside_are_unpacked_as_gnu_tar_does(report, tmp_path):
    write(tmp_path / "a.tar", SAFE[report])
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    unpack(tmp_path / "a.tar", tmp_path / "ours", "a.tar", place="the code folder", fix="-")
    subprocess.run(["tar", "xf", tmp_path / "a.tar", "-C", tmp_path / "theirs"], check=True)
    assert tree(tmp_path / "ours") == tree(tmp_path / "theirs")


@pytest.mark.parametrize("report", ABSOLUTE)
def test_an_absolute_link_costs_code_an_error_and_results_only_itself(report, tmp_path):
    write(tmp_path / "a.tar", ABSOLUTE[report])
    (tmp_path / "code").mkdir()
    with pytest.raises(UserError, match="link .* leads out of the code folder"):
        unpack(tmp_path / "a.tar", tmp_path / "code", "a.tar", place="the code folder", fix="-")
    assert not os.listdir(tmp_path / "code")
    said = []
    count = unpack(tmp_path / "a.tar", tmp_path / "code", "a.tar", place="the folder", fix="-", leave_out=said.append)
    assert (count, len(said)) == (2, 1)
    assert len([what for what in tree(tmp_path / "code").values() if what == "x"]) == 2
