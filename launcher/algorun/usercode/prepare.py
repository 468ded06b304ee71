"""Fetches and installs the user's code, and unpacks channels: `python -I -m algorun.usercode.prepare SETUP RESULT`.

The supervisor runs it as a process, so that it can end a slow download with the job and log pip's output. SETUP is a
`Setup` as JSON. The file RESULT gets {"source": SHA-256 of the archive or "",
"error": message or "", "environment": the folder of the job's own environment or "", "moments": [[seconds of the monotonic
clock, what began then], ..]}.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from algorun.common import codec
from algorun.common.archives import finish
from algorun.common.errors import ExitCode, UserError, exit_code
from algorun.common.fast_dataclasses import dataclass
from algorun.common.process_limit import cannot_start, is_limit
from algorun.job.paths import write_aside
from algorun.job.usercode import REQUIREMENTS, Setup, has_files, has_requirements, is_package

from .alone import alone
from .fetch import fetch, make_folder

REPOSITORY = re.compile(
    r"arn:[^:]+:codeartifact:(?P<region>[^:]+):(?P<owner>[^:]+):repository/(?P<domain>[^/]+)/(?P<repository>.+)"
)


MOMENTS: list[tuple[float, str]] = []  # what began when, in the words of timing/clock.py


def _begin(what: str) -> None:
    MOMENTS.append((time.monotonic(), what))


def _say(text: str) -> None:
    sys.stdout.buffer.write(f"{text}\n".encode(errors="backslashreplace"))  # a path may hold bytes that are not UTF-8
    sys.stdout.flush()


def package_index(arn: str) -> str:
    """The URL of a CodeArtifact repository, with its token, for PIP_INDEX_URL. Raises UserError."""
    found = REPOSITORY.fullmatch(arn)
    if found is None:
        raise UserError(
            "CA_REPOSITORY_ARN",
            f"{arn!r} is not a CodeArtifact repository",
            allowed="arn:..:codeartifact:..:repository/DOMAIN/NAME",
        )
    try:
        import boto3
    except ImportError:
        raise UserError(
            "boto3", "is not installed, but CA_REPOSITORY_ARN needs a token of AWS", fix="pip install boto3"
        ) from None
    try:
        client = boto3.client("codeartifact", region_name=found["region"])
        domain = {"domain": found["domain"], "domainOwner": found["owner"]}
        token = client.get_authorization_token(**domain)["authorizationToken"]
        name = found["repository"]
        address = client.get_repository_endpoint(**domain, repository=name, format="pypi")["repositoryEndpoint"]
    except Exception as error:
        raise UserError(
            "CA_REPOSITORY_ARN",
            f"{arn!r}: no token of CodeArtifact: {type(error).__name__}",
            fix="give the job credentials and a network route to CodeArtifact; allow its role "
            "codeartifact:GetAuthorizationToken, GetRepositoryEndpoint and ReadFromRepository",
        ) from None
    return re.sub(r"^(https?://)", rf"\1aws:{token}@", address.rstrip("/") + "/simple/")


@dataclass(frozen=True, slots=True)
class Pip:
    """What pip is to install. `what` is shown in the log."""

    words: tuple[str, ...]
    what: str


def _pip(pip: Pip, python: str, code: Path, environ: Mapping[str, str]) -> None:
    """Runs `pip install` in the code folder: requirements may be relative paths. Raises UserError if pip fails.

    -I: pip must not import a json.py of the user's folder.
    """
    argv = [python, "-I", "-m", "pip", "install", "--disable-pip-version-check", *pip.words]
    _say(f"installing {pip.what}")
    environ = dict(environ)
    if environ.get("CA_REPOSITORY_ARN"):  # a token in the environment; every process could read a command line
        environ["PIP_INDEX_URL"] = package_index(environ["CA_REPOSITORY_ARN"])
    try:
        done = subprocess.run(argv, cwd=code, env=environ, stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        if not is_limit(error):
            raise
        raise cannot_start("pip install") from None
    if done.returncode:
        raise UserError(
            f"pip install {' '.join(pip.words)}",
            f"failed with exit code {exit_code(done.returncode)}",
            fix="see pip's lines in the log",
        )


@dataclass(frozen=True, slots=True)
class PreparationDone:
    """What was prepared: the SHA-256 of fetched code, and the folder of the job's own environment, "" if there is none."""

    source: str = ""
    environment: str = ""


def prepare(setup: Setup, environ: Mapping[str, str]) -> PreparationDone:
    """Fetches, installs, then unpacks. Raises UserError."""
    done = _prepare_code(setup, environ) if setup.code else PreparationDone()
    if setup.extract:
        _begin("unpack")
        from .extract import extract  # imported late: most jobs do not use it

        for channel in setup.extract:
            extract(channel, _say)
    return done


def _prepare_code(setup: Setup, environ: Mapping[str, str]) -> PreparationDone:
    code, source = Path(setup.code), ""
    make_folder(code)
    with alone(code):  # whoever waited here finds all files of the other one
        finish(code)
        if setup.uri and not has_files(code):
            _begin("fetch")
            _say(f"fetching {setup.uri}")
            source = fetch(setup, environ)
        return PreparationDone(source, _install(setup, code, environ))


def _install(setup: Setup, code: Path, environ: Mapping[str, str]) -> str:
    """Installs what the code requires. Returns the folder of the job's own environment, "" if the interpreter's is used."""
    package, requirements = is_package(code, setup.program), has_requirements(code)
    if not package and not requirements:
        return ""
    words = (*(["."] if package else []), *(["-r", REQUIREMENTS] if requirements else []))
    pip = Pip(words, f"the package in {code}" if package else REQUIREMENTS)
    _begin("install")
    if setup.environments is None:
        _pip(pip, sys.executable, code, environ)
        return ""
    from . import job_environment  # only jobs on a machine of the user's have one

    def install(python: str, own: Mapping[str, str]) -> None:
        _pip(pip, python, code, own)

    return job_environment.environment_of(
        job_environment.Code(code, package), setup.environments, environ, install, _say
    )


def main() -> int:
    """Returns the exit code: 0, or the error's with the error in RESULT."""
    code = int(ExitCode.OK)
    setup: Setup = codec.from_json(Setup, json.loads(sys.argv[1]))
    try:
        done, text = prepare(setup, os.environ), ""
    except UserError as error:
        done, text, code = PreparationDone(), str(error), error.code
    result = {"source": done.source, "environment": done.environment, "error": text}
    write_aside(Path(sys.argv[2]), json.dumps({**result, "moments": MOMENTS}))
    return code


if __name__ == "__main__":
    sys.exit(main())
