"""A `docker` and an `aws` that give prepared answers and write down how they were called, for the tests of build.sh.

They are shell scripts: a push calls eight of them, and Python would start for longer than build.sh runs.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build.sh"

Answer = tuple[int, str, str]
"""Exit status, standard output, standard error."""

DONE: Answer = (0, "", "")
FAILED: Answer = (1, "", "")
ANSWERS: Mapping[str, Answer] = {
    "docker": DONE,
    "docker --version": (0, "Docker version 28.0.0, build 0\n", ""),
    "docker image inspect": FAILED,  # no such image
    "docker image inspect --format": DONE,
}
# Separators of a record: between words, between fields, after a record.
WORD, FIELD, RECORD = "\x1f", "\x1e", "\x1d"

SCRIPT = r"""#!/bin/bash
called="NAME $*"
[[ NAME != aws ]] || called="aws ${called#* ecr }"
read='' text='' mode='' files=''
if [[ $called == *--password-stdin* ]]; then IFS= read -r -d '' read; fi
if [[ -n ${DOCKER_CONFIG:-} ]]; then
    mode=$(stat -c %a "$DOCKER_CONFIG")
    for path in "$DOCKER_CONFIG"/*; do files+="${path##*/}"$'\x1f'$(realpath "$path")$'\x1f'; done
    [[ ! -e $DOCKER_CONFIG/config.json ]] || text=$(<"$DOCKER_CONFIG/config.json")
fi
IFS=$'\x1f'
words="$*"
printf '%s\x1e%s\x1e%s\x1e%s\x1e%s\x1e%s\x1e%s\x1e%s\x1d' NAME "$words" "$read" "$text" "$files" "$mode" \
    "${DOCKER_CONTEXT:-}" "${DOCKER_BUILDKIT:-}" >> CALLS
case $called in
"""


@dataclass(frozen=True, slots=True)
class Call:
    program: str
    """`aws` or `docker`."""
    words: list[str]
    read: str
    """Standard input of a login."""
    config: str
    """Text of config.json below DOCKER_CONFIG."""
    files: dict[str, str]
    """Name and real path of each file below DOCKER_CONFIG."""
    mode: str
    """Access rights of DOCKER_CONFIG, such as 700."""
    context: str
    """DOCKER_CONTEXT."""
    buildkit: str
    """DOCKER_BUILDKIT."""

    @property
    def argv(self) -> list[str]:
        return [self.program, *self.words]

    @property
    def only_looks(self) -> bool:
        """Whether it is a question to docker that build.sh does not print."""
        asks = self.words[0] in ("--version", "buildx", "context", "info")
        return asks or (self.words[:2] == ["image", "inspect"] and "--format" not in self.words)


class Programs:
    """The two programs, below `folder`/bin.

    The key of an answer is how a command line begins, `aws` followed by what comes after `ecr`; the longest key that
    fits wins. `images` are those that `docker image inspect` finds.
    """

    def __init__(self, folder: Path, answers: Mapping[str, Answer] = {}, images: Iterable[str] = ()) -> None:
        self.folder, self.docker = folder, folder / "bin" / "docker"
        known = {**ANSWERS, **{f"docker image inspect {image}": DONE for image in images}, **answers}
        (folder / "bin").mkdir(parents=True)
        for name in ("aws", "docker"):
            text = SCRIPT.replace("NAME", name).replace("CALLS", shlex.quote(str(folder / "calls")))
            for key in sorted((key for key in known if key.split()[0] == name), key=len, reverse=True):
                code, said, error = (shlex.quote(str(each)) for each in known[key])
                text += f"{shlex.quote(key)}*) printf %s {said}; printf %s {error} >&2; exit {code} ;;\n"
            path = folder / "bin" / name
            path.write_text(f'{text}*) echo "no answer: $called" >&2; exit 99 ;;\nesac\n')
            path.chmod(0o755)

    def run(self, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Runs build.sh with these programs first on PATH. DOCKER="" lets it look for docker there."""
        removed = ("AWS_REGION", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG")
        kept = {key: value for key, value in os.environ.items() if key not in removed}
        kept |= {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "DOCKER": str(self.docker),
        }
        kept |= environ
        return subprocess.run(
            [BUILD, *argv], env=kept, capture_output=True, text=True, timeout=60, check=False, cwd="/"
        )

    def calls(self) -> list[Call]:
        """All calls, in order."""
        found, path = [], self.folder / "calls"
        for record in (path.read_text() if path.exists() else "").split(RECORD)[:-1]:
            name, words, read, text, files, *rest = record.split(FIELD)
            pairs = iter(files.split(WORD)[:-1])
            found.append(Call(name, words.split(WORD), read, text, dict(zip(pairs, pairs, strict=True)), *rest))
        return found

    def printed_calls(self) -> list[Call]:
        """The calls without the questions to docker that are not printed."""
        return [call for call in self.calls() if not call.only_looks]
