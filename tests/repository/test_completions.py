"""What shells complete: the files are made of the parsers, and the shells themselves take them."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from algorun.commands import overview
from algorun.commands.command_line import SHELLS
from tests.conftest import ROOT

FOLDER = ROOT / "launcher" / "algorun" / "commands" / "completions"
TYPE = """
source "$1"; shift
COMP_WORDS=(algorun "$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
$(complete -p algorun | sed 's/.*-F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""


def printed(shell):
    words = [sys.executable, "-I", "-m", "algorun", "completion", shell]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_the_files_are_what_the_program_makes(shell):
    pytest.importorskip("shtab", reason="needs shtab, which makes them (pip install -e '.[test-light]')")
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import completions
    finally:
        sys.path.remove(str(ROOT / "docs"))
    assert (FOLDER / shell).read_text() == completions.text(shell), "python docs/completions.py"
    assert printed(shell) == completions.text(shell)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["sub"], {"submit"}),
        ([""], {*overview.LAUNCHER, overview.REPORT, *overview.CLIENT}),
        (["submit", "--per"], {"--per-gpu", "--per-host"}),
        (["status", "--where", ""], {"aws", "local"}),
        (["completion", ""], set(SHELLS)),
        (["submit", "--code", "do"], {"docker", "docs"}),
        (["run", "--per-gpu", "READ"], {"README.md"}),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else "",
)
def test_bash_offers_commands_options_choices_and_files(typed, offered):
    words = ["bash", "-c", TYPE, "bash", str(FOLDER / "bash"), *typed]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    assert {line.strip() for line in done.stdout.splitlines()} - {""} == offered


def test_zsh_reads_its_file(tmp_path):
    if not shutil.which("zsh"):
        pytest.skip("no zsh on PATH (apt-get install zsh)")
    shutil.copyfile(FOLDER / "zsh", tmp_path / "_algorun")
    words = ["zsh", "-fc", f"fpath=({tmp_path} $fpath); autoload -Uz compinit && compinit -D && print $_comps[algorun]"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr, done.stdout.strip()) == (0, "", "_algorun")


def test_fish_offers_the_commands():
    if not shutil.which("fish"):
        pytest.skip("no fish on PATH (apt-get install fish)")
    words = [
        "fish",
        "--no-config",
        "-c",
        f"source {FOLDER / 'fish'}; complete -C 'algorun sub'; complete -C 'algorun submit --per'",
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    offered = {line.split("\t")[0] for line in done.stdout.splitlines()}
    assert {"submit", "--per-gpu", "--per-host"} <= offered
