"""The user's code from where the SDKs put it, to a job on real hosts: fetched, unpacked, installed, run."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from algorun.commands.simulate import _free_port
from tests.conftest import algorun, clean_environ

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

    def __init__(self, base: Path, marker: str, hosts: tuple[str, ...] = HOSTS, **environ: str) -> None:
        self.base, self.hosts, port = base, hosts, str(_free_port())
        addresses = ",".join(f"{host}=127.0.0.{index}" for index, host in enumerate(hosts, 1))
        self.children = {}
        for host in hosts:
            env = clean_environ(
                ALGORUN_TEST=marker, ALGORUN_ADDRESSES=addresses, ALGORUN_CONTROL_PORT=port,
                SAGEMAKER_BASE_DIR=str(base / host), **environ,
            )  # fmt: skip
            argv = [sys.executable, "-I", "-m", "algorun", "train"]
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


@pytest.mark.parametrize("form", ["tar", "file-uri", "folder", "network isolation"])
def test_code_comes_from_where_the_sdk_put_it(form, tmp_path, nothing_left):
    files = {"train.py": PRINTS, "lib/part.py": "VALUE = 1\n"}
    if form == "folder":
        where = tmp_path / "source"
        for name, text in files.items():
            (where / name).parent.mkdir(parents=True, exist_ok=True)
            (where / name).write_text(text)
        uris = {host: str(where) for host in HOSTS}
    else:
        source = tarball(tmp_path / "sourcedir.tar.gz", files)
        uris = {host: f"file://{source}" if form == "file-uri" else str(source) for host in HOSTS}
    if form == "network isolation":
        for host in HOSTS:
            channel = tmp_path / host / "input" / "data" / "code"
            channel.mkdir(parents=True)
            uris[host] = str(tarball(channel / "sourcedir.tar.gz", files))
    _, codes, outs = both(
        tmp_path,
        nothing_left,
        lambda host: {"sagemaker_submit_directory": uris[host]},
        sagemaker_program="train.py",
        lr=0.1,
    )
    assert codes == [0, 0], outs
    for rank, host in enumerate(HOSTS):
        code = tmp_path / host / "code"
        assert f"[{rank} {host}] ran {rank} ['--lr', '0.1'] {code}" in outs[host]
        assert sorted(path.name for path in code.iterdir()) == ["lib", "train.py"]


@pytest.mark.parametrize("name", ["pkg.work", "pkg"])
def test_a_module_is_an_entry_point(name, tmp_path, nothing_left):
    base = tree(tmp_path, "algo-1", ("algo-1",), sagemaker_program=name, lr=0.1)
    (base / "code" / "pkg").mkdir(parents=True)
    (base / "code" / "pkg" / "part.py").write_text("VALUE = 7\n")
    for module in ("work", "__main__"):
        (base / "code" / "pkg" / f"{module}.py").write_text(
            f"import sys\nfrom .part import VALUE\nprint('{module}', VALUE, sys.argv[1:], flush=True)\n"
        )
    codes, outs = Cluster(tmp_path, nothing_left, ("algo-1",)).end()
    assert codes == [0], outs
    said = "work" if name == "pkg.work" else "__main__"
    assert f"[0 algo-1] {said} 7 ['--lr', '0.1']" in outs["algo-1"]


def test_a_code_folder_with_files_is_never_unpacked_into(tmp_path, nothing_left):
    source = tarball(tmp_path / "sourcedir.tar.gz", {"train.py": "raise SystemExit('fetched')"})
    for host in HOSTS:
        (tmp_path / host / "code").mkdir(parents=True)
        (tmp_path / host / "code" / "train.py").write_text(PRINTS)
    _, codes, outs = both(tmp_path, nothing_left, sagemaker_program="train.py", sagemaker_submit_directory=str(source))
    assert codes == [0, 0], outs


def test_other_code_on_one_host_is_refused(tmp_path, nothing_left):
    uris = {host: str(tarball(tmp_path / f"{host}.tar.gz", {"train.py": PRINTS + f"# {host}\n"})) for host in HOSTS}
    job, codes, outs = both(
        tmp_path, nothing_left, lambda host: {"sagemaker_submit_directory": uris[host]}, sagemaker_program="train.py"
    )
    assert codes == [64, 64], outs
    (text,) = job.failures()
    assert text.startswith("mismatch: algo-2, exit 64: source differs: ")


@pytest.mark.parametrize(
    ("program", "files", "says"),
    [
        ("absent.py", {"train.py": PRINTS}, "'absent.py' does not exist"),
        ("lib", {"lib/part.py": PRINTS}, "'lib' is a folder"),
        ("../train.py", {"train.py": PRINTS}, "allowed: a path inside the code folder"),
    ],
)
def test_an_entry_point_that_is_none_is_one_clear_error_on_all_hosts(program, files, says, tmp_path, nothing_left):
    source = tarball(tmp_path / "s.tar.gz", files)
    job, codes, outs = both(tmp_path, nothing_left, sagemaker_program=program, sagemaker_submit_directory=str(source))
    assert codes == [64, 64], outs
    (text,) = job.failures()
    assert says in text


def test_a_broken_archive_of_one_host_ends_all_with_its_reason(tmp_path, nothing_left):
    good = tarball(tmp_path / "good.tar.gz", {"train.py": PRINTS * 1000})
    bad = tmp_path / "bad.tar.gz"
    bad.write_bytes(good.read_bytes()[:-40])
    uris = {"algo-1": str(good), "algo-2": str(bad)}
    job, codes, outs = both(
        tmp_path, nothing_left, lambda host: {"sagemaker_submit_directory": uris[host]}, sagemaker_program="train.py"
    )
    assert codes == [64, 64], outs
    (text,) = job.failures()
    assert text.startswith(f"setup: algo-2, exit 64: sagemaker_submit_directory '{bad}'")
    assert list((tmp_path / "algo-2" / "code").iterdir()) == []


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


@pytest.fixture
def site(tmp_path):
    """Where pip of the test installs: not into the interpreter that runs the tests."""
    return {"PIP_TARGET": str(tmp_path / "site"), "PIP_NO_INDEX": "1", "PYTHONPATH": str(tmp_path / "site")}


def test_requirements_are_installed_before_the_start(tmp_path, nothing_left, site):
    """json.py of the user's must not stand in for pip's own; a requirement may be a path beside the file."""
    base = tree(tmp_path, "algo-1", ("algo-1",), sagemaker_program="train.py")
    local_package(base / "code" / "mine", "algorun_test_mine")
    (base / "code" / "requirements.txt").write_text("./mine\n")
    (base / "code" / "json.py").write_text("raise SystemExit('json of the user was imported')")
    (base / "code" / "train.py").write_text("import algorun_test_mine as mine\nprint('value', mine.VALUE)\n")
    codes, outs = Cluster(tmp_path, nothing_left, ("algo-1",), **site).end()
    assert codes == [0], outs
    assert "[0 algo-1] value 42" in outs["algo-1"]
    assert "[setup algo-1] installing requirements.txt" in outs["algo-1"]


def test_a_failed_install_is_the_root_cause_with_the_last_lines_of_pip(tmp_path, nothing_left, site):
    for host in HOSTS:
        base = tree(tmp_path, host, HOSTS, sagemaker_program="train.py")
        (base / "code").mkdir()
        (base / "code" / "train.py").write_text(PRINTS)
    local_package(tmp_path / "algo-2" / "code" / "mine", "algorun_test_mine", broken=True)
    (tmp_path / "algo-2" / "code" / "requirements.txt").write_text("./mine\n")
    job = Cluster(tmp_path, nothing_left, **site)
    codes, outs = job.end()
    assert codes == [64, 64], outs
    (text,) = job.failures()
    assert text.startswith("setup: algo-2, exit 64: pip install -r requirements.txt: exit 1")
    assert "this package cannot be built" in (tmp_path / "algo-1" / "output" / "data" / "failure-full.txt").read_text()
    assert len(text) <= 1024


def test_no_password_of_an_address_is_shown(tmp_path, nothing_left, site):
    code = tree(tmp_path, "algo-1", ("algo-1",), sagemaker_program="train.py") / "code"
    code.mkdir()
    (code / "train.py").write_text(PRINTS)
    signed = "http://user:hidden@127.0.0.1:9/it-1-py3-none-any.whl?X-Amz-Date=1&X-Amz-Signature=hidden"
    (code / "requirements.txt").write_text(f"it @ {signed}\n")
    codes, outs = Cluster(tmp_path, nothing_left, ("algo-1",), PIP_RETRIES="0", **site).end()
    assert codes == [64], outs
    output = tmp_path / "algo-1" / "output"
    texts = [path.read_text() for path in output.rglob("*") if path.is_file()]
    assert "hidden" not in "".join([*outs.values(), *texts])
    assert "X-Amz-Date=1&X-Amz-Signature=***" in outs["algo-1"]


@pytest.mark.parametrize("who", HOSTS)
def test_a_host_whose_preparation_cannot_even_start_tells_the_others(who, tmp_path, nothing_left):
    """An address longer than a command line may be; without a word from this host the others wait for the gate."""
    for host in HOSTS:
        uri = {"sagemaker_submit_directory": "s3://b/" + "x" * 200_000} if host == who else {}
        code = tree(tmp_path, host, HOSTS, sagemaker_program="train.py", **uri) / "code"
        if host != who:
            code.mkdir()
            (code / "train.py").write_text(PRINTS)
    job = Cluster(tmp_path, nothing_left)
    codes, outs = job.end(timeout=30)
    assert codes == [64, 64], outs
    (text,) = job.failures()
    assert text.startswith(f"setup: {who}, exit 64: ")
    assert "Argument list too long" in text


@pytest.mark.parametrize(
    "wrong",
    [
        {"algorun_args": "'" + "x" * 90_000},
        {"sagemaker_program": "x" * 300},
        {"sagemaker_program": "\ud800.py"},
        {"sagemaker_program": "loop.py"},
    ],
    ids=["a text longer than a message", "a name that no file has", "half a character", "a link to itself"],
)
def test_a_strange_hyperparameter_of_one_host_ends_all(wrong, tmp_path, nothing_left):
    for host in HOSTS:
        one = {"sagemaker_program": "train.py"} | (wrong if host == "algo-2" else {})
        code = tree(tmp_path, host, HOSTS, **one) / "code"
        code.mkdir()
        (code / "train.py").write_text(PRINTS)
        (code / "loop.py").symlink_to("loop.py")
    job = Cluster(tmp_path, nothing_left)
    codes, outs = job.end(timeout=30)
    assert codes == [64, 64], outs
    (text,) = job.failures()
    assert text.startswith("configuration: algo-2, exit 64: hyperparameter ")


def test_options_that_contradict_the_plan_are_one_error_for_all(tmp_path, nothing_left):
    wishes = {"sagemaker_mpi_enabled": True, "sagemaker_mpi_custom_mpi_options": "-np 7"}
    for host in HOSTS:
        code = tree(tmp_path, host, HOSTS, sagemaker_program="train.py", **wishes) / "code"
        code.mkdir()
        (code / "train.py").write_text(PRINTS)
    job = Cluster(tmp_path, nothing_left)
    codes, outs = job.end(timeout=30)
    assert codes == [64, 64], outs
    (text,) = job.failures()
    assert "'-np' contradicts the plan" in text


@pytest.mark.parametrize("kind", ["setup.py", "pyproject.toml"])
def test_a_package_is_installed_and_run_as_a_module(kind, tmp_path, nothing_left, site):
    base = tree(tmp_path, "algo-1", ("algo-1",), sagemaker_program="algorun_test_pkg", depth=2)
    local_package(base / "code", "algorun_test_pkg")
    if kind == "setup.py":
        (base / "code" / "setup.py").write_text("# its presence decides, as under sagemaker-training\n")
    codes, outs = Cluster(tmp_path, nothing_left, ("algo-1",), **site).end()
    assert codes == [0], outs
    assert "[0 algo-1] package ran ['--depth', '2']" in outs["algo-1"]


@pytest.mark.timed
def test_a_stop_while_pip_works_ends_the_job_at_once(tmp_path, nothing_left, site):
    site |= {"TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    for host in HOSTS:
        base = tree(tmp_path, host, HOSTS, sagemaker_program="train.py")
        (base / "code").mkdir()
        (base / "code" / "train.py").write_text(PRINTS)
    slow = local_package(tmp_path / "algo-2" / "code" / "mine", "algorun_test_mine")
    (slow / "backend.py").write_text("import time\nprint('building', flush=True)\ntime.sleep(60)\n")
    (tmp_path / "algo-2" / "code" / "requirements.txt").write_text("./mine\n")
    job = Cluster(tmp_path, nothing_left, **site)
    log = tmp_path / "algo-2" / "output" / "data" / "logs" / "setup-algo-2.log"
    deadline = time.monotonic() + 30
    while not (log.exists() and "Processing" in log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    started = time.monotonic()
    job.children["algo-1"].send_signal(signal.SIGTERM)
    codes, outs = job.end()
    assert codes == [0, 0], outs
    assert time.monotonic() - started < 5
    assert all("stopped nnodes=2" in out for out in outs.values())
    assert list((tmp_path / "tmp").iterdir()) == []  # nothing of pip's, which was killed


def test_an_endless_install_ends_at_its_limit(tmp_path, nothing_left, site):
    base = tree(tmp_path, "algo-1", ("algo-1",), sagemaker_program="train.py")
    slow = local_package(base / "code" / "mine", "algorun_test_mine")
    (slow / "backend.py").write_text("import time\ntime.sleep(60)\n")
    (base / "code" / "requirements.txt").write_text("./mine\n")
    (base / "code" / "train.py").write_text(PRINTS)
    job = Cluster(tmp_path, nothing_left, ("algo-1",), ALGORUN_PREPARE_S="2", **site)
    codes, outs = job.end()
    assert codes == [65], outs
    assert job.failures().pop().startswith("setup: algo-1, exit 65: not ready after 2 s (ALGORUN_PREPARE_S)")


def test_a_script_without_its_mode_runs_under_the_shell_that_it_names(tmp_path, nothing_left):
    base = tree(tmp_path, "algo-1", ("algo-1",), sagemaker_program="go.sh")
    (base / "code").mkdir()
    (base / "code" / "go.sh").write_text('#!/usr/bin/env bash\nwords=(a b)\necho "bash ${words[1]}"\n')
    done = algorun("train", cwd=tmp_path, ALGORUN_TEST=nothing_left, SAGEMAKER_BASE_DIR=str(base))
    assert done.code == 0, done.text
    assert "[0 algo-1] bash b" in done.out
