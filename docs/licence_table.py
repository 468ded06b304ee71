"""Writes the table of docs/image.md: what models of folders add to the image, with versions, licences and sizes.

    .venv/bin/python docs/licence_table.py

Versions are those of docker/requirements-deps.lock, licences and sizes those of this Python's packages. It needs the same
versions installed; else it ends with the command that installs them.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PAGE, LOCK = ROOT / "docs" / "image.md", ROOT / "docker" / "requirements-deps.lock"
ASKED = ("transformers", "tokenizers", "safetensors", "peft")
ANYWAY = ("torch", "numpy", "pillow", "scikit-learn", "tensorboard", "mpi4py", "boto3")  # the image has what they need
BEGIN, END = "<!-- Written by docs/licence_table.py. -->\n", "<!-- The end of its table. -->\n"
SPDX = {  # names that packages without a License-Expression use
    "Apache": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: MIT License": "MIT",
    "ISC License": "ISC",
}


def locked() -> dict[str, str]:
    """The versions of the image, by package."""
    return dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", LOCK.read_text(), re.M))


def needed(names: tuple[str, ...]) -> dict[str, Distribution]:
    """These packages and all that they require here, by name. Raises PackageNotFoundError."""
    found: dict[str, Distribution] = {}
    todo = list(names)
    while todo:
        name = canonicalize_name(todo.pop())
        if name not in found:
            found[name] = distribution(name)
            wanted = map(Requirement, found[name].requires or [])
            todo += [each.name for each in wanted if not each.marker or each.marker.evaluate({"extra": ""})]
    return found


def added() -> dict[str, Distribution]:
    """The packages that are in the image for models of folders, those that were asked for first."""
    asked = tuple(name for name in ASKED if name in locked())
    anyway, all_needed = needed(ANYWAY), needed(asked)
    return {name: all_needed[name] for name in (*asked, *sorted(set(all_needed) - set(asked))) if name not in anyway}


def licence(package: Distribution) -> str:
    """Its licence as an SPDX expression."""
    data = package.metadata
    if expression := data.get("License-Expression"):
        return str(expression)
    classifiers = [each for each in data.get_all("Classifier") or [] if each.startswith("License ::")]
    text = data.get("License") or classifiers[0]
    return SPDX.get(text, text)


def megabytes(package: Distribution) -> float:
    """The size of its files, without the bytecode that pip compiles."""
    return sum(file.size or 0 for file in package.files or []) / 1e6


def table() -> str:
    """The Markdown. Raises SystemExit if this Python has other versions than the image."""
    versions, packages = locked(), added()
    wrong = [f"{n}=={versions[n]}" for n in packages if packages[n].version != versions[n]]
    if wrong:
        sys.exit(f"other versions than in {LOCK.name}; fix: pip install {' '.join(wrong)}")
    rows = ["| package | version | licence | MB |", "|---|---|---|---|"]
    rows += [f"| {n} | {p.version} | {licence(p)} | {megabytes(p):.1f} |" for n, p in packages.items()]
    total = sum(map(megabytes, packages.values()))
    return "\n".join([*rows, f"| all {len(packages)} | | | {total:.0f} |"]) + "\n"


def main() -> int:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + "\n" + table() + "\n" + END + rest.partition(END)[2])
    return 0


if __name__ == "__main__":
    sys.exit(main())
