"""What goes up of folders like those of public reports about other tools (docs/public-reports.md); git says the same."""

from __future__ import annotations

import os
import subprocess

import pytest

from algorun_client.files import scan

CASES = {
    "skypilot#8812": (["a.json", "config.json"], {"": "*.json\n!config.json\n"}, ["config.json"]),
    "posit-publisher#420": (["a.log", "important.log"], {"": "*.log\n!important.log\n"}, ["important.log"]),
    "convox-rack#2253": (["a.py"], {"": ".git\n!.git/HEAD\n!.git/logs/HEAD\n!.git\n"}, ["a.py"]),
    "skypilot#6513": (["a.py", "src/b.py"], {"": "*.csv\n!*/\n"}, ["a.py", "src/b.py"]),
    "apollo-universal-starter-kit#475": (
        ["upload/a", "src/server/upload/b.js", "src/c.js"],
        {"": "upload\n"},
        ["src/c.js"],
    ),
    "CodeGra.de#398": (["dd/a.c", "x/dd/b.c", "dd.txt"], {"": "dd/\n"}, ["dd.txt"]),
    "nni#2454": (["a/x.py", "a/big.bin", "b/big.bin"], {"a": "*.bin\n"}, ["a/.gitignore", "a/x.py", "b/big.bin"]),
    "concourse-fly#218": ([".env.example", ".github/w.yml", "a.py"], {}, [".env.example", ".github/w.yml", "a.py"]),
    "git-ftp#606": (["System/vendor/x.php", "vendor/y.php"], {"": "System/vendor\n"}, ["vendor/y.php"]),
}


def git(folder, *words):
    environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(["git", *words], cwd=folder, env=environ, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.mark.parametrize("report", CASES)
def test_what_goes_up_is_what_git_would_send(report, tmp_path):
    files, rules, wanted = CASES[report]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for folder, text in rules.items():
        (tmp_path / folder / ".gitignore").write_text(text)
    git(tmp_path, "init", "-q")
    git(tmp_path, "config", "remote.origin.url", "https://user:token@host.invalid/r.git")
    wanted = sorted([*wanted, *([".gitignore"] if "" in rules else [])])
    assert [file.name for file in scan.code(tmp_path, "--code").files] == wanted
    assert git(tmp_path, "ls-files", "--others", "--exclude-standard").split() == wanted


def test_a_folder_that_git_ignores_goes_up_on_request(tmp_path):
    """skypilot#446: data of a clone below the work folder, which the job needs and git must not keep."""
    for name in ("a.py", "data/x", "data/cache/y"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".gitignore").write_text("data/\n")
    assert "data/x" not in [file.name for file in scan.code(tmp_path, "--code").files]
    (tmp_path / ".algorunignore").write_text("!/data/\ndata/cache/\n")
    found = [file.name for file in scan.code(tmp_path, "--code").files]
    assert found == [".algorunignore", ".gitignore", "a.py", "data/x"]
