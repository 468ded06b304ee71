"""Prepares a host for the user's program: `python -I -m algorun.usercode.prepare SETUP RESULT`, a program of its own.

The supervisor runs it, so that a slow download or an endless installation stops when the job does, and so that what
pip prints is in the log. RESULT gets {"source": sha256, "error": text, "fix": text}.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from algorun import codec
from algorun.errors import ExitCode, UserError, exit_code
from algorun.job.paths import write_aside
from algorun.job.usercode import REQUIREMENTS, Setup, has_files, is_package

from .fetch import fetch

REPOSITORY = re.compile(
    r"arn:[^:]+:codeartifact:(?P<region>[^:]+):(?P<owner>[^:]+):repository/(?P<domain>[^/]+)/(?P<repository>.+)"
)


def _say(text: str) -> None:
    sys.stdout.buffer.write(f"{text}\n".encode(errors="backslashreplace"))  # not every path is Unicode text
    sys.stdout.flush()


def package_index(arn: str) -> str:
    """The address of a CodeArtifact repository with its token, for pip's environment. Raises UserError."""
    found = REPOSITORY.fullmatch(arn)
    if found is None:
        raise UserError(
            "CA_REPOSITORY_ARN", f"{arn!r} is no repository", allowed="arn:..:codeartifact:..:repository/DOMAIN/NAME"
        )
    try:
        import boto3

        client = boto3.client("codeartifact", region_name=found["region"])
        domain = {"domain": found["domain"], "domainOwner": found["owner"]}
        token = client.get_authorization_token(**domain)["authorizationToken"]
        name = found["repository"]
        address = client.get_repository_endpoint(**domain, repository=name, format="pypi")["repositoryEndpoint"]
    except Exception as error:
        raise UserError("CA_REPOSITORY_ARN", f"CodeArtifact does not answer: {type(error).__name__}") from None
    return re.sub(r"^(https?://)", rf"\1aws:{token}@", address.rstrip("/") + "/simple/")


def _pip(words: list[str], code: Path, environ: Mapping[str, str], what: str) -> None:
    """Runs pip in the code folder, where a requirement may be a relative path.

    -I: a json.py of the user's must not stand in for pip's own.
    """
    argv = [sys.executable, "-I", "-m", "pip", "install", "--disable-pip-version-check", *words]
    _say(f"installing {what}")
    environ = dict(environ)
    if environ.get("CA_REPOSITORY_ARN"):  # in the environment, not on the command line that others can read
        environ["PIP_INDEX_URL"] = package_index(environ["CA_REPOSITORY_ARN"])
    done = subprocess.run(argv, cwd=code, env=environ, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise UserError(
            f"pip install {' '.join(words)}", f"exit {exit_code(done.returncode)}", fix="see pip's own lines"
        )


def prepare(setup: Setup, environ: Mapping[str, str]) -> str:
    """Fetches, then installs; returns the SHA-256 of the fetched archive. Raises UserError."""
    code, source = Path(setup.code), ""
    if setup.uri and not has_files(code):
        _say(f"fetching {setup.uri}")
        source = fetch(setup, environ)
    requirements = ["-r", REQUIREMENTS] if (code / REQUIREMENTS).is_file() else []
    if is_package(code, setup.program):
        _pip([".", *requirements], code, environ, f"the package in {code}")
    elif requirements:
        _pip(requirements, code, environ, REQUIREMENTS)
    return source


def main() -> int:
    """The program."""
    setup: Setup = codec.from_json(Setup, json.loads(sys.argv[1]))
    try:
        result = {"source": prepare(setup, os.environ), "error": ""}
    except UserError as error:
        result = {"source": "", "error": str(error)}
    write_aside(Path(sys.argv[2]), json.dumps(result))
    return int(ExitCode.CONFIGURATION) if result["error"] else int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
