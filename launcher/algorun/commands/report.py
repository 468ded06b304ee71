"""The way to `algorun report`, whose libraries are installed apart: the launcher has no dependencies."""

from __future__ import annotations

from collections.abc import Sequence

from algorun.common import distributions

from . import client

PACKAGES = ("algorun_report", "jinja2", "markupsafe")


def run(words: Sequence[str]) -> int:
    """Runs `algorun report WORDS`, and returns its exit code. A job that is not in a folder is fetched by the client.

    Raises UserError, also if the extra is missing.
    """
    try:
        from algorun_report.command import is_of_folder, main
    except ModuleNotFoundError as error:
        if error.name not in PACKAGES:
            raise  # a defect, not a missing package
        raise distributions.missing("algorun report", error.name or "", "algorun-client") from None
    if is_of_folder(words) or not client.is_installed():
        return main(words)
    return client.run(["report", *words])
