"""Requirements of a job on a machine of the user's go into an environment of the job, made once, never into the user's own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import venv
from pathlib import Path

import pytest

from tests import layered
from tests.conftest import MPI as MPIRUN
from tests.conftest import NO_MPI, algorun

from .code_folders import Cluster, local_package, tree
from .running import Running
from .wheels import wheel

ENGINES = ("native", "torchrun", pytest.param("mpirun", marks=pytest.mark.skipif(MPIRUN is None, reason=NO_MPI)))
SAYS = """
import importlib.metadata, shutil, subprocess, sys
import algorun_test_lib as lib
print("saw", lib.VERSION, importlib.metadata.version("algorun_test_lib"), sys.executable, flush=True)
print(subprocess.run(["algorun-test-tool"], capture_output=True, text=True).stdout, flush=True)
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    for version in ("1.0", "2.0"):
        wheel(folder, "algorun_test_lib", version)
    wheel(folder, "algorun_test_own", "1.0", program="algorun-test-tool")
    return folder


@pytest.fixture(scope="module")
def users(tmp_path_factory, wheels):
    """The interpreter of a user's environment: over this one, with the library's old version and a program that imports it."""
    folder = tmp_path_factory.mktemp("users") / "a folder"
    python = layered.make(folder, str(wheels / "algorun_test_lib-1.0-py3-none-any.whl"))
    script = folder / "bin" / "algorun-test-tool"
    # As pip writes it for a path that is long or holds spaces.
    start = f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"
    script.write_text(f"{start}import sys, algorun_test_lib as lib\nprint('tool', lib.VERSION, sys.executable)\n")
    script.chmod(0o755)
    return python


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Variables and a configuration file that send pip elsewhere."""
    home = tmp_path / "home"
    (home / ".config" / "pip").mkdir(parents=True)
    (home / ".config" / "pip" / "pip.conf").write_text(
        f"[install]\nuser = true\n[global]\ntarget = {tmp_path}/target\n"
    )
    return {
        "HOME": str(home),
        "PIP_USER": "1",
        "PIP_TARGET": str(tmp_path / "target"),
        "PIP_REQUIRE_VIRTUALENV": "1",
        "ALGORUN_ENVIRONMENTS": str(tmp_path / "environments"),
    }


def folder_of(tmp_path: Path, wheels: Path, *lines: str, program: str = SAYS) -> Path:
    folder = tmp_path / "project"
    folder.mkdir(exist_ok=True)
    (folder / "requirements.txt").write_text("\n".join(("--no-index", f"--find-links {wheels}", *lines)) + "\n")
    (folder / "train.py").write_text(program)
    return folder


def packages(python: Path) -> str:
    argv = [str(python), "-I", "-m", "pip", "list", "--format=json"]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout


def simulated(folder: Path, marker: str, program: str = "train.py", *, python: object = sys.executable, **environ: str):
    run = algorun("simulate", "-j", "2x1", program, cwd=folder, python=str(python), ALGORUN_TEST=marker, **environ)
    return run


# The same code with another value or at another moment.
@pytest.mark.slow(but=["native"])
@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_see_the_requirements_and_the_user_s_environment_stays_as_it_is(
    engine, tmp_path, wheels, users, site, nothing_left
):
    folder, before = folder_of(tmp_path, wheels, "algorun_test_lib==2.0"), packages(users)
    for installs in (1, 0) if engine == "native" else (1,):  # the second job finds the environment of the first one
        run = algorun(
            "simulate", "-j", "2x2", "--engine", engine, "train.py",
            cwd=folder, python=str(users), ALGORUN_TEST=nothing_left, **site,
        )  # fmt: skip
        assert run.code == 0, run.text
        own = f"{tmp_path}/environments/"
        assert run.text.count("saw 2.0 2.0 " + own) == 4, run.text
        assert run.text.count("tool 2.0 " + own) == 4, (
            run.text
        )  # a program of the user's environment, with the job's packages
        assert run.text.count("Successfully installed algorun_test_lib-2.0") == installs
    assert packages(users) == before
    assert len(os.listdir(tmp_path / "environments")) == 1
    assert not (tmp_path / "target").exists()


@pytest.mark.slow
def test_python_in_a_shell_script_is_the_job_s(tmp_path, wheels, users, site, nothing_left):
    """Also without requirements, whatever stands first on PATH."""
    folder = folder_of(tmp_path, wheels, "algorun_test_own")
    (folder / "run.sh").write_text(
        "python -c 'import sys; print(\"is\", sys.executable)'; python3 -m pip list; algorun-test-tool\n"
    )
    other = tmp_path / "other"
    other.mkdir()
    for name in ("python", "python3"):
        (other / name).symlink_to("/bin/false")
    site |= {"PATH": f"{other}:{os.environ['PATH']}"}
    run = simulated(folder, nothing_left, "run.sh", python=users, **site)
    assert run.code == 0, run.text
    assert run.out.count(f"is {tmp_path}/environments/") == 2
    assert run.out.count(f"program 1.0 {tmp_path}/environments/") == 2, (
        run.out
    )  # the job's own, not the user's of that name
    assert run.out.count("algorun_test_own") >= 2
    (folder / "requirements.txt").unlink()
    (folder / "run.sh").write_text("python -c 'import sys; print(\"is\", sys.executable)'\n")
    run = simulated(folder, nothing_left, "run.sh", python=users, **site)
    assert run.code == 0, run.text
    assert run.out.count(f"is {users}") == 2


@pytest.mark.slow
def test_a_failed_install_is_the_cause_and_leaves_nothing(tmp_path, wheels, site, nothing_left):
    folder = folder_of(tmp_path, wheels, "algorun_test_lib==3.0")
    run = simulated(folder, nothing_left, **site)
    assert run.code == 64, run.text
    assert run.failure("algo-1").startswith("setup: algo-")
    assert "exit 64: pip install -r requirements.txt: failed with exit code 1" in run.failure("algo-1")
    assert "No matching distribution found for algorun_test_lib==3.0" in run.failure("algo-1")
    wheel(tmp_path / "more", "algorun_test_lib", "3.0")
    folder_of(
        tmp_path,
        tmp_path / "more",
        "algorun_test_lib==3.0",
        program="import algorun_test_lib as lib\nprint('saw', lib.VERSION)\n",
    )
    run = simulated(folder, nothing_left, **site)
    assert run.code == 0, run.text
    assert run.out.count("saw 3.0") == 2
    assert len(os.listdir(tmp_path / "environments")) == 1  # nothing of those that failed


@pytest.mark.slow
def test_two_jobs_at_the_same_moment_make_one_environment(tmp_path, wheels, site, nothing_left):
    folder = folder_of(tmp_path, wheels, "algorun_test_lib==2.0", program="import algorun_test_lib\nprint('saw it')\n")
    runs = []

    def start(out: str) -> None:
        runs.append(
            algorun("simulate", "-j", "2x1", "--out", out, "train.py", cwd=folder, ALGORUN_TEST=nothing_left, **site)
        )

    threads = [threading.Thread(target=start, args=(out,)) for out in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    texts = [run.text for run in runs]
    assert [run.code for run in runs] == [0, 0], texts
    assert sum(text.count("Successfully installed") for text in texts) == 1, texts
    assert sum(text.count("saw it") for text in texts) == 4


@pytest.mark.slow
def test_a_stop_ends_pip_and_the_next_job_makes_the_environment(tmp_path, site, nothing_left):
    folder = tmp_path / "project"
    slow = local_package(folder / "mine", "algorun_test_mine")
    builds = (slow / "backend.py").read_text()
    (slow / "backend.py").write_text(
        f"import os, time\nif not os.path.exists('{tmp_path}/quick'):\n    time.sleep(60)\n{builds}"
    )
    (folder / "requirements.txt").write_text("./mine\n")
    (folder / "train.py").write_text("import algorun_test_mine as mine\nprint('saw', mine.VALUE)\n")
    for number in (signal.SIGTERM, signal.SIGKILL):  # SIGKILL: the machine goes down, or the user is impatient
        job = Running("native", "train.py", folder=folder, marker=nothing_left, layout="2x1", **site)
        job.wait_for("Processing ./mine", 1)
        if number == signal.SIGKILL:
            hosts = [job.supervisor(f"algo-{host}") for host in (1, 2)]
            for process in (job.process, *hosts):
                process.send_signal(number)
        started = time.monotonic()
        job.process.send_signal(number)
        assert job.end() == (0 if number == signal.SIGTERM else -number), job.log.read_text()
        assert time.monotonic() - started < 20
    (tmp_path / "quick").touch()
    run = simulated(folder, nothing_left, **site)
    assert run.code == 0, run.text
    assert run.out.count("saw 42") == 2
    (made,) = (tmp_path / "environments").iterdir()
    assert len(list(made.iterdir())) == 2  # the environment, and what says that it is complete


@pytest.mark.slow
def test_a_link_to_the_code_is_bound_to_its_folder(tmp_path, site, nothing_left):
    """`-e .` in requirements.txt: the environment of one folder is never another one's."""
    environments = tmp_path / "environments"
    for name in ("one", "two"):
        folder = tmp_path / name
        (folder / "mine").mkdir(parents=True)
        (folder / "mine" / "__init__.py").write_text("")
        (folder / "backend.py").write_text(EDITABLE)
        (folder / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n[project]\nname = "mine"\nversion = "1.0"\n'
        )
        (folder / "requirements.txt").write_text("-e .\n")
        (folder / "train.py").write_text(
            "import os\nos.chdir('/')\nimport sys\nsys.path.pop(0)\nimport mine\nprint('saw', mine.__file__)\n"
        )
        run = simulated(folder, nothing_left, **site)
        assert run.code == 0, run.text
        assert run.out.count(f"saw {folder}/mine/__init__.py") == 2
    assert len(os.listdir(environments)) == 2
    shutil.rmtree(tmp_path / "one")
    (tmp_path / "two" / "requirements.txt").write_text("-e .\n# another text\n")
    assert simulated(tmp_path / "two", nothing_left, **site).code == 0
    assert len(os.listdir(environments)) == 2  # that of the folder that is gone is gone


EDITABLE = """
import os, zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(f"{folder}/mine-1.0-py3-none-any.whl", "w") as out:
        out.writestr("mine.pth", os.getcwd() + "\\n")
        out.writestr("mine-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: mine\\nVersion: 1.0\\n")
        out.writestr("mine-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        out.writestr("mine-1.0.dist-info/RECORD", "")
    return "mine-1.0-py3-none-any.whl"
build_wheel = build_editable
"""


@pytest.mark.slow
def test_an_environment_without_pip_gets_python_s_own(tmp_path, wheels, site, nothing_left):
    """As uv makes environments."""
    pytest.importorskip("ensurepip")
    folder = folder_of(tmp_path, wheels, "algorun_test_lib==2.0", program="import algorun_test_lib\nprint('saw it')\n")
    venv.create(tmp_path / "uv", symlinks=True)
    python = tmp_path / "uv" / "bin" / "python"
    (below,) = (tmp_path / "uv").glob("lib/python*/site-packages")
    (below / "algorun.pth").write_text(f"{Path(__file__).parents[3] / 'launcher'}\n")
    run = simulated(folder, nothing_left, python=python, **site)
    assert run.code == 0, run.text
    assert run.out.count("saw it") == 2
    assert [each.name for each in below.iterdir()] == ["algorun.pth"]


def bare_python(folder: Path, *, without: tuple[str, ...]) -> Path:
    """A Python that is no virtual environment, as conda and Debian install it: without packages, and these parts of its library."""
    library = Path(sysconfig.get_path("stdlib"))
    below = folder / "lib" / library.name
    (below / "site-packages").mkdir(parents=True)
    (folder / "bin").mkdir()
    python = Path(shutil.copy(os.path.realpath(sys.executable), folder / "bin" / "python"))
    for each in library.iterdir():
        if each.name not in (*without, "site-packages", "dist-packages"):
            (below / each.name).symlink_to(each)
    for each in library.parent.glob("libpython*"):
        (folder / "lib" / each.name).symlink_to(each)
    asked = "import site, sys; print(sys.prefix, sys.base_prefix, *site.getsitepackages(), sep='\\n')"
    said = subprocess.run([python, "-I", "-c", asked], capture_output=True, text=True, check=False).stdout
    if said.splitlines()[:2] != [str(folder), str(folder)]:
        pytest.skip("this Python does not run in another folder")
    packages = Path(said.splitlines()[2])  # Debian's has names of its own
    packages.mkdir(parents=True, exist_ok=True)
    (packages / "algorun.pth").write_text(f"{Path(__file__).parents[3] / 'launcher'}\n")
    return python


@pytest.mark.parametrize(
    ("without", "is_conda", "what", "fix"),
    [
        (
            ("ensurepip",),
            False,
            "pip: is not installed in {}, and Python has none to bring",
            "apt install python3-venv",
        ),
        (("ensurepip",), True, "pip: is not installed in {}", "conda install --prefix {} pip"),
        (
            ("venv",),
            False,
            "Python in {}: cannot make environments: No module named 'venv'",
            "apt install python3-venv",
        ),
    ],
    ids=["Debian", "conda", "python3-minimal"],
)
def test_a_python_that_cannot_install_requirements_says_what_it_lacks(
    tmp_path, wheels, site, nothing_left, without, is_conda, what, fix
):
    python = bare_python(tmp_path / "base", without=without)
    (tmp_path / "base" / ("conda-meta" if is_conda else "other")).mkdir()
    run = simulated(folder_of(tmp_path, wheels, "algorun_test_lib==2.0"), nothing_left, python=python, **site)
    assert run.code == 64, run.text
    what, fix = (each.format(tmp_path / "base") for each in (what, fix))
    assert f", exit 64: {what}" in run.text  # of either host
    assert f"; fix: {fix}" in run.text
    assert "Traceback" not in run.text


@pytest.mark.slow
def test_a_python_like_that_of_conda_keeps_its_own_packages(tmp_path, wheels, site, nothing_left):
    pytest.importorskip("ensurepip")
    python = bare_python(tmp_path / "base", without=())
    folder = folder_of(tmp_path, wheels, "algorun_test_lib==2.0", program="import algorun_test_lib\nprint('saw it')\n")
    run = simulated(folder, nothing_left, python=python, **site)
    assert run.code == 0, run.text
    assert run.out.count("saw it") == 2
    found = [each for kind in ("site", "dist") for each in (tmp_path / "base").rglob(f"{kind}-packages/*")]
    assert [each.name for each in found] == ["algorun.pth"]


@pytest.mark.slow
def test_a_package_goes_into_the_environment_as_well(tmp_path, users, site, nothing_left):
    before = packages(users)
    for host in ("algo-1", "algo-2"):
        base = tree(tmp_path, host, ("algo-1", "algo-2"), sagemaker_program="algorun_test_pkg", depth=2)
        local_package(base / "code", "algorun_test_pkg")
    codes, outs = Cluster(tmp_path, nothing_left, python=str(users), **site).end()
    assert codes == [0, 0], outs
    assert all("package ran ['--depth', '2']" in out for out in outs.values())
    assert "".join(outs.values()).count("Successfully installed") == 1, outs
    assert packages(users) == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path, wheels, site, nothing_left):
    (tmp_path / "file").touch()
    run = simulated(
        folder_of(tmp_path, wheels), nothing_left, **site | {"ALGORUN_ENVIRONMENTS": str(tmp_path / "file" / "x")}
    )
    assert run.code == 64, run.text
    assert (
        "no environment can be made: Not a directory; fix: make room there, or set ALGORUN_ENVIRONMENTS"
        in run.failure("algo-1")
    )


def test_nothing_is_made_for_a_job_without_requirements(tmp_path, site, nothing_left):
    (tmp_path / "train.py").write_text("print('ran')\n")
    run = simulated(tmp_path, nothing_left, **site)
    assert (run.code, run.out.count("] ran"), run.out.count("setup")) == (0, 2, 0), run.text
    assert not (tmp_path / "environments").exists()
