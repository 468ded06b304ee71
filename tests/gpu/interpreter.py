"""A Python that has this repository and all packages of the one that runs this, made without installing anything."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import venv
from pathlib import Path

from . import PACKAGES
from .machine import ROOT


def package_folders() -> list[str]:
    """Where this interpreter finds packages: all of sys.path but the standard library and this repository."""
    stdlib = os.path.realpath(sysconfig.get_path("stdlib"))
    ours = {os.path.realpath(folder) for folder in (ROOT, *PACKAGES)}
    found = []
    for folder in sys.path:
        real = os.path.realpath(folder)
        own = real in ours or real == stdlib or real == f"{stdlib}/lib-dynload"
        if folder and os.path.isdir(folder) and not own:
            found.append(os.path.abspath(folder))
    return found


def make(folder: Path) -> Path:
    """The interpreter of a new environment in `folder`: links, and .pth files that name folders."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, symlinks=True, with_pip=False)
    site = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(folder), "platbase": str(folder)}))
    # As `pip install -e` names it, which algorun-rank.pth looks for. This repository first: what `pip install` may have left of another algorun comes after it.
    lines = [str(ROOT), *map(str, PACKAGES)]
    lines += [f"import site; site.addsitedir({each!r})" for each in package_folders()]
    (site / "_editable_impl_algorun.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name in ("launcher/algorun-rank.pth", "compat/algorun-smdistributed.pth"):
        shutil.copy(ROOT / name, site)
    return folder / "bin" / "python"
