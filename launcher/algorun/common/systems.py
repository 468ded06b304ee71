"""Which system this is: jobs run on Linux only, and the client wherever Python and boto3 do, except on Windows."""

from __future__ import annotations

import sys

from .errors import UserError


def need_linux(what: str) -> None:
    """Raises UserError where `what` starts hosts and this system cannot: they need Linux's namespaces, addresses and /proc."""
    if sys.platform != "linux":
        raise UserError(
            what,
            f"starts hosts on this machine, and they need Linux (this is {sys.platform})",
            fix="a container or virtual machine with Linux; `plan`, `submit` to AWS, `logs`, `fetch` and `report` work here",
        )


def refuse_windows() -> None:
    """Raises UserError on Windows, before anything is imported that is not there."""
    if sys.platform == "win32":
        raise UserError(
            "algorun",
            "does not run on Windows itself",
            fix="use WSL: in it everything works, also jobs on this machine",
        )
