"""What each distribution puts into an environment, alone and beside the others: packages with names of their own, and nothing else."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
# The folder of each distribution: its packages, and what else it puts into site-packages.
OWN = {
    "launcher": {"algorun", "algorun-rank.pth"},
    "train": {"algorun_train"},
    "client": {"algorun_client", "algorun_report"},
    "compat": {"algorun_smdistributed", "algorun-smdistributed.pth"},
}
ALL = set().union(*OWN.values())
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")

pytestmark = pytest.mark.slow  # builds wheels and environments: half a minute
pytest.importorskip("hatchling", reason="what builds the wheels (pip install --group test)")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The wheel of each folder."""
    made = {}
    for folder in OWN:
        out = tmp_path_factory.mktemp(folder)
        run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", out, ROOT / folder)
        (made[folder],) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def bare(wheels, tmp_path_factory):
    """Python of an environment that holds the launcher alone."""
    return environment(tmp_path_factory.mktemp("bare"), wheels["launcher"])


@pytest.fixture(scope="module")
def whole(wheels, tmp_path_factory):
    """Python of an environment that holds all of them, beside our libraries."""
    return environment(tmp_path_factory.mktemp("whole"), *wheels.values(), see_ours=True)


def environment(folder, *what, see_ours=False):
    """Python of a new environment in `folder` in which pip has installed `what`. `see_ours`: it finds our libraries too."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    if see_ours:
        libraries = {sysconfig.get_path("purelib"), str(Path(torch.__file__).parents[1])}
        (site_packages(python) / "beside.pth").write_text("\n".join(sorted(libraries)))
    if what:
        run(*PIP, "--python", python, "install", "--no-index", "--no-build-isolation", "--no-deps", *what)
    return python


def run(*command, **options):
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=120, env=environ, **options
    ).stdout


def site_packages(python):
    return Path(run(python, "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())


def installed(python):
    folder = site_packages(python)  # pip removes a folder that it leaves empty
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    return {name for name in names if not name.endswith(".dist-info")} - {"__pycache__", "beside.pth"}


@pytest.mark.parametrize("folder", OWN)
def test_a_wheel_holds_typed_packages_and_a_licence(folder, wheels):
    names = zipfile.ZipFile(wheels[folder]).namelist()
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == OWN[folder]
    assert {f"{package}/py.typed" for package in OWN[folder] if not package.endswith(".pth")} <= set(names)
    assert [name for name in names if name.endswith("/licenses/LICENSE")]


def test_they_go_into_one_environment_without_an_index_and_come_out_again(wheels, tmp_path):
    python = environment(tmp_path / "environment", *wheels.values())
    assert installed(python) == ALL
    names = [wheel.name.partition("-")[0].replace("_", "-") for wheel in wheels.values()]
    run(*PIP, "--python", python, "uninstall", "--yes", *names)
    assert installed(python) == set()


def test_no_name_that_a_user_s_folder_may_have_is_taken(bare, tmp_path):
    assert installed(bare) == OWN["launcher"]
    for name in ("train", "launcher", "data", "models"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("mine = True\n")
    program = "import algorun, train, launcher, data, models; print(train.mine, launcher.mine, data.mine, models.mine)"
    assert run(bare, "-c", program, cwd=tmp_path) == "True True True True\n"


def test_the_launcher_and_should_stop_need_no_torch(bare):
    program = "import algorun, importlib.util as u; print(u.find_spec('torch'), algorun.should_stop())"
    assert run(bare, "-I", "-c", program) == "None False\n"
    version = run(bare, "-I", "-m", "algorun", "--version")
    assert version == run(bare.with_name("algorun"), "--version")
    assert version.startswith("algorun ")


@pytest.mark.parametrize(
    ("words", "distribution", "folder"),
    [
        (("report", "job"), "algorun-client", "client"),
        (("ls",), "algorun-client", "client"),
        (("simulate", "-j", "1x1", "ddp"), "algorun-train", "train"),
        (("run", "ddp", "--help"), "algorun-train", "train"),
    ],
)
def test_a_command_of_a_distribution_that_is_not_there_names_it(words, distribution, folder, bare, tmp_path):
    done = subprocess.run(
        (bare, "-I", "-m", "algorun", *words), cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 64
    fix = f"fix: uv pip install --python {bare} ./{folder}, in the clone of algorun"  # an environment without pip
    assert f": {distribution} is not installed; {fix}" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_report_without_its_library_names_it_and_with_it_needs_nothing_else(wheels, tmp_path):
    (tmp_path / "job" / "logs").mkdir(parents=True)
    (tmp_path / "job" / "logs" / "algo-1-1795400000.log").write_text("train_loss: 0.5\n")
    command = ("-I", "-m", "algorun", "report", tmp_path / "job")
    python = environment(tmp_path / "with", wheels["launcher"], wheels["client"])
    without = subprocess.run((python, *command), capture_output=True, text=True, timeout=60)
    assert without.returncode == 64
    fix = f"uv pip install --python {python} boto3 'jinja2>=3.1' 'rich>=13'"
    assert without.stderr == f"algorun: error: algorun report: jinja2 is not installed; fix: {fix}\n"
    for name in ("jinja2", "markupsafe"):
        (site_packages(python) / name).symlink_to(Path(importlib.util.find_spec(name).origin).parent)
    assert "1 metric of 1 host" in run(python, *command)


def test_bundled_jobs_run_by_name_beside_torch(whole, tmp_path):
    assert "--epochs" in run(whole, "-m", "algorun_train.jobs.ddp", "--help", cwd=tmp_path)
    file = run(whole, "-c", "import algorun_train; print(algorun_train.__file__)", cwd=tmp_path)
    assert file.startswith(str(whole.parents[1]))


SCRIPT = """
import sys, smdistributed, smdistributed.modelparallel.torch as smp
import algorun_smdistributed.modelparallel.torch as ours
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel
print(smp is ours, smp is sys.modules["smdistributed.modelparallel.torch"], smdistributed.__file__)
"""


def as_rank(python, program, folder, rank="0"):
    """Runs a program as a rank with this number; None: as no rank."""
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RANK")}
    command, number = (python, "-c", program), {} if rank is None else {"RANK": rank}
    return subprocess.run(
        command, cwd=folder, env=environ | number, capture_output=True, text=True, timeout=60, check=True
    )


def test_the_name_smdistributed_is_offered_and_one_line_says_whose_it_is(whole, tmp_path):
    for rank in (None, "0"):
        done = as_rank(whole, SCRIPT, tmp_path, rank)
        assert done.stdout == f"True True {site_packages(whole)}/algorun_smdistributed/__init__.py\n"
        (line,) = [line for line in done.stderr.splitlines() if "algorun" in line]
        assert line.startswith("algorun: smdistributed is algorun-smdistributed 0")
    missing = (
        "import importlib.util as u; print(u.find_spec('smdistributed.absent'), u.find_spec('smdistributed') is None)"
    )
    assert run(whole, "-c", missing, cwd=tmp_path) == "None False\n"


def test_the_closed_package_stays_whole_and_is_the_one_that_scripts_get(wheels, tmp_path):
    """Ours is installed after it, and removed again."""
    closed = tmp_path / "closed" / "smdistributed"
    (closed / "modelparallel").mkdir(parents=True)
    (closed / "__init__.py").write_text("owner = 'AWS'\n")
    (closed / "modelparallel" / "__init__.py").write_text("owner = 'AWS'\n")
    (closed.parent / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "smdistributed-modelparallel"\nversion = "1.15.0"\n'
        '[tool.hatch.build.targets.wheel]\npackages = ["smdistributed"]\n'
    )
    (tmp_path / "wheel").mkdir()
    run(
        *PIP,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--wheel-dir",
        tmp_path / "wheel",
        closed.parent,
    )
    python = environment(tmp_path / "environment", *(tmp_path / "wheel").iterdir())
    before = {path: path.read_bytes() for path in (site_packages(python) / "smdistributed").rglob("*.py")}
    run(*PIP, "--python", python, "install", "--no-index", "--no-deps", *wheels.values())
    program = "import smdistributed.modelparallel as m; print(m.owner, m.__file__)"
    line = f"algorun: smdistributed is another distribution's ({site_packages(python)}/smdistributed)\n"
    for rank, said in (("0", line), ("1", ""), (None, "")):  # the launcher is no rank, and asks nobody more
        done = as_rank(python, program, tmp_path, rank)
        assert done.stdout.startswith(f"AWS {site_packages(python)}/smdistributed/")
        assert done.stderr == said
    run(*PIP, "--python", python, "uninstall", "--yes", "algorun-smdistributed")
    assert {path: path.read_bytes() for path in before} == before
    assert len(before) == 2


def test_a_finder_that_was_added_behind_ours_counts_more(whole, tmp_path):
    """As an editable install adds one."""
    (tmp_path / "closed.py").write_text("owner = 'AWS'\n")
    program = (
        "import sys, importlib.util as u\n"
        "class Closed:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        return u.spec_from_file_location(name, 'closed.py') if name == 'smdistributed' else None\n"
        "sys.meta_path.append(Closed())\nimport smdistributed\nprint(smdistributed.owner)\n"
    )
    assert run(whole, "-c", program, cwd=tmp_path) == "AWS\n"


def test_distributions_of_two_clones_are_found_by_doctor(wheels, tmp_path):
    python = environment(tmp_path, wheels["launcher"], wheels["train"])
    (found,) = site_packages(python).glob("algorun_train-*.dist-info/METADATA")
    found.write_text(found.read_text().replace("\nVersion: ", "\nVersion: 0.1+", 1))
    done = subprocess.run((python, "-I", "-m", "algorun", "doctor"), capture_output=True, text=True, timeout=60)
    said = " ".join(done.stdout.split())
    assert "algorun-train 0.1+" in said
    assert "install all of them from one clone" in said


def test_an_editable_install_is_the_checkout(tmp_path):
    pytest.importorskip("editables", reason="what editable installs need (pip install --group test)")
    folders = [word for folder in OWN for word in ("--editable", ROOT / folder)]
    python = environment(tmp_path, *folders, see_ours=True)  # the wheels are built by what it sees
    assert run(python, "-I", "-c", "import algorun; print(algorun.__file__)").startswith(str(ROOT / "launcher"))
    assert run(python, "-I", "-m", "algorun", "--version").startswith("algorun ")
    assert "algorun_smdistributed" in run(python, "-c", "import smdistributed; print(smdistributed.__file__)")
