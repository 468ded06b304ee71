"""Which file the dynamic loader would load for a shared library. `root` as in probe."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

# The folders that glibc searches after LD_LIBRARY_PATH and ldconfig's cache; Debian and Ubuntu add the last two.
FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")
OF_32_BITS = re.compile(r"/(lib32|i[36]86-[^/]*|x32)/")


def find(name: str, environ: Mapping[str, str], root: str = "") -> str:
    """The path that dlopen(`name`) would load in a rank; "" if there is none. A name with a slash is a path."""
    if "/" in name:
        return name if os.path.exists(f"{root}{name}") else ""
    folders = [folder for folder in re.split("[:;]", environ.get("LD_LIBRARY_PATH", "")) if folder]
    candidates = [f"{folder.rstrip('/')}/{name}" for folder in folders]
    candidates += [path for path in _cached(root) if path.endswith(f"/{name}")]
    candidates += [f"{folder}/{name}" for folder in FOLDERS]
    return next((path for path in candidates if os.path.exists(f"{root}{path}")), "")


def _cached(root: str) -> list[str]:
    """The paths in ldconfig's cache. Every version of its format stores them as strings that end with a zero byte."""
    try:
        data = Path(f"{root}/etc/ld.so.cache").read_bytes()
    except OSError:
        return []
    paths = [os.fsdecode(found) for found in re.findall(rb"\0(/[^\0]+)(?=\0)", data)]
    return [path for path in paths if not OF_32_BITS.search(path)]
