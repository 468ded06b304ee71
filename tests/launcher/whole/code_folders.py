"""Jobs whose code comes from where the SDKs put it: a host's /opt/ml, archives, packages, and `algorun train` on several hosts."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.conftest import clean_environ
from tests.ports import own_port

HOSTS = ("algo-1", "algo-2")
PRINTS = "import os, sys\nprint('ran', os.environ['RANK'], sys.argv[1:], os.getcwd(), flush=True)\n"


def tarball(path: Path, files: dict[str, str], members: list[tarfile.TarInfo] | None = None) -> Path:
    """A sourcedir.tar.gz as the SDK makes it: the files at its root."""
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
        for member in members or []:
            tar.addfile(member)
    return path


def tree(base: Path, host: str, hosts: tuple[str, ...], **hyperparameters: object) -> Path:
    """One host's /opt/ml, hyperparameters JSON-encoded as framework estimators send them."""
    folder = base / host / "input" / "config"
    folder.mkdir(parents=True)
    (folder / "resourceconfig.json").write_text(json.dumps({"hosts": hosts, "current_host": host}))
    raw = {key: json.dumps(value) for key, value in hyperparameters.items()}
    (folder / "hyperparameters.json").write_text(json.dumps(raw))
    return base / host


class Cluster:
    """`algorun train` on several hosts of this machine, each with its own /opt/ml."""

    def __init__(
        self, base: Path, marker: str, hosts: tuple[str, ...] = HOSTS, *, python: str = sys.executable, **environ: str
    ) -> None:
        self.base, self.hosts, port = base, hosts, str(own_port())
        addresses = ",".join(f"{host}=127.0.0.{index}" for index, host in enumerate(hosts, 1))
        self.children = {}
        for host in hosts:
            env = clean_environ(
                ALGORUN_TEST=marker, ALGORUN_ADDRESSES=addresses, ALGORUN_CONTROL_PORT=port,
                SAGEMAKER_BASE_DIR=str(base / host), **environ,
            )  # fmt: skip
            argv = [python, "-I", "-m", "algorun", "train"]
            self.children[host] = subprocess.Popen(
                argv, env=env, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )

    def end(self, timeout: float = 90) -> tuple[list[int], dict[str, str]]:
        outs = {host: child.communicate(timeout=timeout)[0] for host, child in self.children.items()}
        return [child.returncode for child in self.children.values()], outs

    def failures(self) -> set[str]:
        return {(self.base / host / "output" / "failure").read_text() for host in self.hosts}


def both(
    tmp_path: Path, marker: str, per_host=lambda host: {}, environ: dict[str, str] | None = None, **hyperparameters
):
    for host in HOSTS:
        tree(tmp_path, host, HOSTS, **hyperparameters, **per_host(host))
    job = Cluster(tmp_path, marker, **(environ or {}))
    return job, *job.end()


def local_package(folder: Path, name: str, broken: bool = False) -> Path:
    """A package that pip installs without an index: its build system is in its own folder."""
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        f'[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n[project]\nname = "{name}"\nversion = "1.0"\n'
    )
    body = "raise RuntimeError('this package cannot be built')\n" if broken else (
        "import zipfile\n"
        f"NAME, TAG = '{name}', '{name}-1.0'\n"
        "def build_wheel(folder, config_settings=None, metadata_directory=None):\n"
        "    wheel = f'{TAG}-py3-none-any.whl'\n"
        "    with zipfile.ZipFile(f'{folder}/{wheel}', 'w') as out:\n"
        "        out.writestr(f'{NAME}/__init__.py', 'VALUE = 42\\n')\n"
        "        out.writestr(f'{NAME}/__main__.py', 'import sys; print(\"package ran\", sys.argv[1:], flush=True)\\n')\n"
        "        out.writestr(f'{TAG}.dist-info/METADATA', f'Metadata-Version: 2.1\\nName: {NAME}\\nVersion: 1.0\\n')\n"
        "        out.writestr(f'{TAG}.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n"
        "        out.writestr(f'{TAG}.dist-info/RECORD', '')\n"
        "    return wheel\n"
    )  # fmt: skip
    (folder / "backend.py").write_text(body)
    return folder
