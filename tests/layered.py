"""An environment on top of another one: all that it has, and packages of its own that come first.

Several versions of Open MPI exclude each other in one environment. `python tests/layered.py FOLDER [REQUIREMENT ..]`
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

INSTALL_S = 300


def make(folder: Path, *requirements: str) -> Path:
    """The environment's interpreter. Raises CalledProcessError or TimeoutExpired where pip cannot install."""
    below = sysconfig.get_path("purelib")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    # Its .pth files count as well: an editable install is one.
    (site / "zz-layered.pth").write_text(f"import site; site.addsitedir({below!r})\n")
    if requirements:
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", *requirements]
        subprocess.run(pip, check=True, timeout=INSTALL_S, capture_output=True, text=True)
    return python


if __name__ == "__main__":
    print(make(Path(sys.argv[1]).resolve(), *sys.argv[2:]))
