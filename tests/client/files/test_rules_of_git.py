"""What goes up of a code folder is what git would send: git itself says so, for random trees and random rules."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from algorun_client.files import scan
from tests.conftest import examples

NAMES = (
    "a",
    "b",
    "ab",
    "src",
    "out",
    "a.py",
    "b.log",
    "x y",
    "é",
    "-",
    "[a]",
    "#a",
    "!b",
    "a\\b",
    "*",
    "c ",
    "]",
    "A",
    "a]b",
)
PIECES = (
    *("a", "b", "src", "out", "*", "**", "?", "/", "/", ".py", ".log", "[ab]", "[!a]", "[^b]", "[a-c]", "[]a]", "[a-]"),
    *(
        "[[:alpha:]]",
        "[[:upper:]]",
        "[[:nix:]]",
        "[a",
        "\\",
        "\\*",
        "\\!",
        "\\#",
        "\\ ",
        " ",
        "!",
        "#",
        "-",
        "é",
        "[\\]]",
        "[c-a]",
    ),
    *("***", "**/", "/**", "[/]", "[!/]", "[[:punct:]-a]", "\t", "\x0b", "\x85", "\u2028", "\r"),
)
RULE = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join)
FREQUENT = st.sampled_from(
    (
        "*",
        "!*/",
        "!a",
        "!/src",
        "/*",
        "!src/",
        "out/",
        "*.py",
        "!*.py",
        "**/a",
        "a/**",
        "!**/",
        "src/*",
        "!src/a",
        "# a",
        "",
        ".*",
        "!.git*",
    )
)
RULES = st.lists(st.one_of(RULE, RULE.map("!".__add__), FREQUENT), min_size=1, max_size=6)
PATH = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)
ENDS = st.sampled_from(("\n", "\r\n"))


@st.composite
def trees(draw):
    """Paths, rule files by their folders, and the paths that git tracks."""
    paths = draw(st.lists(PATH, min_size=1, max_size=10, unique=True))
    paths = [path for path in paths if not any(other.startswith(f"{path}/") for other in paths)]
    folders = sorted({"", *(parent for path in paths for parent in parents(path))})
    places = draw(st.lists(st.sampled_from(folders), max_size=2, unique=True))
    bom = draw(st.booleans())
    rules = {
        place: ("\ufeff" if bom else "") + draw(ENDS).join([*draw(RULES), ""]) for place in dict.fromkeys(("", *places))
    }
    return paths, rules, draw(st.lists(st.sampled_from(paths), max_size=2, unique=True))


def parents(path):
    parts = path.split("/")[:-1]
    return ["/".join(parts[: depth + 1]) for depth in range(len(parts))]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    root = tmp_path_factory.mktemp("clone")
    run(root, "init", "--quiet", "--template=")
    return root


def run(root: Path, *words: str) -> bytes:
    environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(
        ["git", "-c", "core.excludesFile=/dev/null", *words], cwd=root, env=environ, check=True, capture_output=True
    ).stdout


# Rules that random ones seldom have beside a path that tells their readings apart.
@example((["a/b/a/b/c", "a/b/a/b/b/c", "a/b/a/c"], {"": "a/*/a/*/c\n"}, []))
@example((["[x", ":x", "]x", "a:]x"], {"": "[[:]x\n"}, []))
@given(trees())
@examples(500)
def test_the_files_are_those_of_git(clone, tree):
    paths, rules, kept = tree
    for entry in os.scandir(clone):
        if entry.name != ".git":
            shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)
    (clone / ".git" / "index").unlink(missing_ok=True)
    for path in paths:
        (clone / path).parent.mkdir(parents=True, exist_ok=True)
        (clone / path).touch()
    for folder, text in rules.items():
        (clone / folder / ".gitignore").write_bytes(text.encode())
    if kept:
        run(clone, "--literal-pathspecs", "add", "--force", "--", *kept)
    listed = run(clone, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    wanted = sorted({os.fsdecode(name) for name in listed.split(b"\0") if name})
    assert sorted(file.name for file in scan.code(clone, "--code").files) == wanted
