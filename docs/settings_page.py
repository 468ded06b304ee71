"""Prints docs/settings.md, the table of all variables ALGORUN_*: python docs/settings_page.py > docs/settings.md"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launcher"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "client"))

from algorun.job.settings import GROUPS, Setting
from algorun_client.common import settings as client

HEAD = """# Settings: the environment variables ALGORUN_*

Set them on all hosts: in an estimator `environment={"ALGORUN_HANG_S": "1200"}`, on a machine of your own

    ALGORUN_HANG_S=1200 algorun simulate -j 2x2 train.py

An empty variable counts as unset. A wrong value ends the job with exit code 64 before anything starts.

<!-- Written by docs/settings_page.py from launcher/algorun/job/settings.py and
client/algorun_client/common/settings.py. -->
"""
NOTES = {
    "Inside a rank": "The launcher sets these for each rank. Do not set them yourself.",
    client.GROUP: "Set them where you run the command, not in the job. [submit.md](submit.md) has examples.",
    "smdistributed": "[compat.md](compat.md) has an example.",
}


def default(setting: Setting[object]) -> str:
    """The default as a user would write it, "" where the variable is unset by default."""
    match setting.default:
        case bool() | None | {} | ():
            return ""
        case float() as number:
            return f"{number:g} {setting.unit}"
        case value:
            return str(value)


def page() -> str:
    """The whole page."""
    lines = [HEAD.rstrip()]
    for title, settings in {**GROUPS, client.GROUP: client.SETTINGS}.items():
        note = f"{NOTES[title]}\n\n" if title in NOTES else ""
        lines.append(f"\n## {title}\n\n{note}| variable | default | allowed | meaning |\n|---|---|---|---|")
        lines += [f"| `{each.name}` | {default(each)} | {each.allowed} | {each.meaning} |" for each in settings]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
