"""The way to the commands of algorun_client, which are installed apart: the launcher has no dependencies."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from algorun.common import distributions

PACKAGES = ("algorun_client", "boto3", "botocore", "rich")


def is_installed() -> bool:
    """True if nothing that the client imports is missing."""
    return all(find_spec(name) is not None for name in PACKAGES)


def run(words: Sequence[str]) -> int:
    """Runs `algorun submit ..` and the like, and returns its exit code. Raises UserError if the client is missing."""
    try:
        from algorun_client.commands.main import main
    except ModuleNotFoundError as error:
        raise _missing(words[0], error) from None
    try:
        return main(words)
    except ModuleNotFoundError as error:  # boto3 and rich are imported when they are needed
        raise _missing(words[0], error) from None


def _missing(command: str, error: ModuleNotFoundError) -> Exception:
    name = (error.name or "").partition(".")[0]
    if (error.name or "") != name or name not in PACKAGES:
        return error  # a defect, not a missing package
    return distributions.missing(f"algorun {command}", name, "algorun-client")
