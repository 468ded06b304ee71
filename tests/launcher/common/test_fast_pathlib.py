"""pathlib is the standard library's, whoever has loaded it, and urllib.parse is too."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADED = "from algorun.common import fast_pathlib; fast_pathlib.load(); import pathlib, sys\n"


def said(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()


def test_a_start_does_not_load_what_as_uri_alone_needs() -> None:
    program = f"{LOADED}import algorun.cli, algorun.host.run, algorun.host.supervisor, algorun.commands.simulate\n"
    assert said(program + "print({'urllib.parse', 'ipaddress'} & sys.modules.keys() or 'none')") == ["none"]


@pytest.mark.parametrize(
    "first", ["", "import urllib.parse\n", "import pathlib\n"], ids=["nothing", "urllib", "pathlib"]
)
def test_paths_and_urls_are_written_as_ever(first: str) -> None:
    program = (
        "print(pathlib.Path('/a b/ü').as_uri(), pathlib.PurePosixPath('/c%').as_uri())\n"
        "import urllib.parse, urllib.request\n"
        "print(urllib.parse.quote('a b'), urllib.parse.urlsplit('http://[::1]:80/x').hostname, urllib.parse.__file__ != '')\n"
        "print(sys.modules['urllib.parse'] is urllib.parse)"
    )
    assert said(first + LOADED + program) == ["file:///a%20b/%C3%BC", "file:///c%25", "a%20b", "::1", "True", "True"]
