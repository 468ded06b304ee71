"""Which package settings of this machine a build can use. Standard library only.

    python3 docker/host_settings.py [--dry-run] FOLDER

Writes FOLDER/ca, FOLDER/pip_conf and FOLDER/apt_conf, each only if this machine has such a setting, and prints one
line `NAME<tab>PATH` for each; a folder of wheels (pip's find-links) is printed as `wheelhouse`. build.sh hands the
files to the build as secrets, so that behind a company's proxy or mirror the build works as the machine itself does.
"""

from __future__ import annotations

import argparse
import ast
import configparser
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

# What decides where packages come from. Paths of this machine (cert, find-links) mean nothing inside a build: the
# certificates travel as a file of their own, the wheels as an image.
PIP_KEYS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "default-timeout", "retries")
APT_KEYS = ("acquire::http", "acquire::https", "acquire::check-", "acquire::retries", "acquire::forceipv")
CA_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def pip_values(listing: str) -> dict[str, str]:
    """`pip config list` as {key: value}; its lines are `section.key='value'`, the environment's (`:env:`) win."""
    values: dict[str, str] = {}
    for line in sorted(listing.splitlines(), key=lambda line: line.startswith(":env:")):
        name, sign, value = line.partition("=")
        if sign and name.rpartition(".")[0] in ("global", "install", "download", "wheel", ":env:"):
            try:
                values[name.rpartition(".")[2]] = str(ast.literal_eval(value))
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                continue  # no setting as pip writes it
    return values


def pip_conf(values: Mapping[str, str]) -> str:
    """The text of a pip.conf with what holds inside a build too; empty where nothing does."""
    kept: dict[str, str] = {}
    for key in PIP_KEYS:
        words = [word for word in values.get(key, "").split() if not word.startswith(("file:", "/", "."))]
        if words:
            kept[key] = "\n".join(words)
    if not kept:
        return ""
    parser = configparser.RawConfigParser()
    parser["global"] = kept
    text = io.StringIO()
    parser.write(text)
    return text.getvalue()


def apt_conf(dump: str) -> str:
    """The lines of `apt-config dump` that say how to reach a mirror (proxy, checks), without empty ones and files."""
    lines = [
        line for line in dump.splitlines() if line.lower().startswith(APT_KEYS) and not re.search(' "(/.*)?";$', line)
    ]
    return "".join(f"{line}\n" for line in lines)


def ca_file(environ: Mapping[str, str], values: Mapping[str, str]) -> Path | None:
    """The certificates that this machine's user chose, if any; the distribution's own choice is no choice."""
    for path in (*(environ.get(name, "") for name in CA_VARIABLES), values.get("cert", "")):
        if path and Path(path).is_file():
            return Path(path)
    return None


def wheelhouse(values: Mapping[str, str]) -> Path | None:
    """The first folder among pip's find-links that holds a wheel."""
    for word in values.get("find-links", "").split():
        folder = Path(word.removeprefix("file://"))
        if folder.is_dir() and any(folder.glob("*.whl")):
            return folder
    return None


def _output(*argv: str) -> str:
    """What a program prints, or nothing where it is missing or fails."""
    if shutil.which(argv[0]) is None:
        return ""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout if done.returncode == 0 else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--dry-run", action="store_true", help="print what would be written")
    arguments = parser.parse_args()

    values = pip_values(_output(sys.executable, "-m", "pip", "config", "list"))
    ca = ca_file(os.environ, values)
    texts = {
        "ca": ca.read_text() if ca else "",
        "pip_conf": pip_conf(values),
        "apt_conf": apt_conf(_output("apt-config", "dump")),
    }
    if not arguments.dry_run:
        arguments.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, text in texts.items():
        path = arguments.folder / name
        if text:
            print(f"{name}\t{path}")
        if arguments.dry_run:
            continue
        path.unlink(missing_ok=True)
        if text:
            # Addresses of mirrors can hold a password.
            path.touch(mode=0o600)
            path.write_text(text)
    wheels = wheelhouse(values)
    if wheels:
        print(f"wheelhouse\t{wheels}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
