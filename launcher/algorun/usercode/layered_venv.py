"""A virtual environment over the one that runs this: it sees all its packages, and its own packages come first.

`venv --system-site-packages` sees the packages of the base interpreter, not those of an environment in which it was called
(cpython issue 118388, virtualenv issue 270). So a .pth file names the folders of the environment below. Programs of that
environment, such as torchrun, would start its interpreter, which sees nothing of the new environment. So they are copied
with the new interpreter.
"""

from __future__ import annotations

import os
import re
import site
import subprocess
import sys
import sysconfig
from collections.abc import Mapping

from algorun.common.errors import UserError
from algorun.job.own_environment import python_of

LAYER = "zzzz-algorun-layer.pth"  # read last: links of the environment's own (`pip install -e`) count more
# The file counts more than the user's and the machine's: `user = true` there is an error in an environment (pip issue 8977), and
# `target` sends packages elsewhere. An empty value is as good as none.
PIP_CONF = "".join(f"[{section}]\nuser = false\ntarget =\nprefix =\nroot =\n" for section in ("global", "install"))
LONGEST_SHEBANG = 4096  # bytes of a program in which its interpreter is looked for
LARGEST_SCRIPT = 256 * 1024  # bytes
LONG_FORM = re.compile(rb"#!/bin/sh\n'''exec' \"?([^\"\n]+?)\"?( [^\"\n]*)? \"\$0\" \"\$@\"\n' '''\n")
SHORT_FORM = re.compile(rb"#!([^\n ]+)( [^\n]*)?\n")
FINDS_ITSELF = re.compile(rb"__file__|dirname\(")  # a program that looks for files beside itself stays where it is


def packages_below(environ: Mapping[str, str]) -> list[str]:
    """The folders of this interpreter's packages, in the order of its search, with the user's own where it sees them.

    It runs with -I, which hides the user's folder; programs of the job run without."""
    folders = site.getsitepackages()
    sees_base = sys.base_prefix in site.PREFIXES  # not in a virtual environment, or in one with the system's packages
    if sees_base and not environ.get("PYTHONNOUSERSITE"):
        folders = [site.getusersitepackages(), *folders]
    return [each for each in folders if os.path.isdir(each)]


def installed_below(environ: Mapping[str, str]) -> list[str]:
    """The names and versions of the packages that an environment over this one sees. Only names of folders are read."""
    folders = dict.fromkeys([*packages_below(environ), *sys.path])
    names = [
        name
        for folder in folders
        for name in _listing(folder)
        if name.endswith((".dist-info", ".egg-info", ".egg-link"))
    ]
    return [*packages_below(environ), *sorted(names)]


def make(folder: str, environ: Mapping[str, str]) -> None:
    """Makes the environment, without pip of its own: it sees that of the one below.

    Raises OSError, and UserError where Python cannot make any (Debian's python3-minimal)."""
    try:
        import venv
    except ImportError as error:
        where, fix = f"Python in {sys.base_prefix}", "apt install python3-venv, or use a whole Python"
        raise UserError(where, f"cannot make environments: {error}", fix=fix) from None

    venv.EnvBuilder(symlinks=True).create(folder)
    with open(f"{folder}/pip.conf", "w", encoding="utf-8") as file:
        file.write(PIP_CONF)
    below = packages_below(environ)
    own = sysconfig.get_path("purelib", "venv", {"base": folder, "platbase": folder})
    with open(f"{own}/{LAYER}", "w", encoding="utf-8") as file:
        file.write(f"import site; list(map(site.addsitedir, {below!r}))\n")


def has_pip(folder: str) -> bool:
    """True if the environment sees a pip, its own or the one below."""
    argv = [python_of(folder), "-I", "-c", "import pip"]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0


def bring_pip(folder: str) -> bool:
    """Installs the pip that Python itself has. False where it has none (Debian without python3-venv)."""
    argv = [python_of(folder), "-I", "-m", "ensurepip"]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )
    return done.returncode == 0


def bring_programs(folder: str, environ: Mapping[str, str]) -> None:
    """Copies the programs of the environment below that run its interpreter; each copy runs the new one."""
    sources = [os.path.dirname(sys.executable), sysconfig.get_path("scripts")]
    if any(each == site.getusersitepackages() for each in packages_below(environ)):
        sources.append(f"{site.getuserbase()}/bin")
    interpreters = {os.fsencode(os.path.realpath(sys.executable))}
    for source in dict.fromkeys(sources):
        for name in _listing(source):
            if not os.path.lexists(f"{folder}/bin/{name}"):
                _bring(f"{source}/{name}", f"{folder}/bin/{name}", interpreters)


def _bring(source: str, target: str, interpreters: set[bytes]) -> None:
    try:
        with open(source, "rb") as file:
            start = file.read(LONGEST_SHEBANG)
            found = LONG_FORM.match(start) or SHORT_FORM.match(start)
            if found is None or os.path.realpath(found[1]) not in interpreters:
                return
            text = start + file.read(LARGEST_SCRIPT)
    except OSError:
        return
    if len(text) > LARGEST_SCRIPT or FINDS_ITSELF.search(text):
        return
    # The long form holds whatever the length of the path, and with spaces in it.
    options = found[2] or b""
    python = os.fsencode(python_of(os.path.dirname(os.path.dirname(target))))
    head = b"#!/bin/sh\n'''exec' \"%s\"%s \"$0\" \"$@\"\n' '''\n" % (python, options)
    with open(target, "wb") as out:
        out.write(head + text[found.end() :])
    os.chmod(target, 0o755)


def _listing(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder or "."))
    except OSError:
        return []
