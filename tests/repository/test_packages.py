"""What `pip install algorun` puts into an environment: five packages with names of their own, and nothing else."""

import importlib.util
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
PACKAGES = {"algorun", "algorun_client", "algorun_report", "algorun_train", "smdistributed"}
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")

pytestmark = pytest.mark.thorough  # builds a wheel and four environments: half a minute
pytest.importorskip("hatchling", reason="what builds the wheel (pip install -e '.[test]')")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """Python of an environment that holds the wheel alone."""
    return environment(tmp_path_factory.mktemp("bare"), wheel)


def environment(folder, *what, see_ours=False):
    """Python of a new environment in `folder` in which pip has installed `what`. `see_ours`: it finds our libraries too."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    if see_ours:
        libraries = {sysconfig.get_path("purelib"), str(Path(torch.__file__).parents[1])}
        (site_packages(python) / "beside.pth").write_text("\n".join(sorted(libraries)))
    run(*PIP, "--python", python, "install", "--no-deps", "--no-index", "--no-build-isolation", *what)
    return python


def run(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, **options).stdout


def site_packages(python):
    return Path(run(python, "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())


def test_the_wheel_holds_five_typed_packages(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {*PACKAGES, "algorun-rank.pth"}
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)


def test_no_name_that_a_user_s_folder_may_have_is_taken(bare, tmp_path):
    installed = {path.name for path in site_packages(bare).iterdir() if not path.name.endswith(".dist-info")}
    assert installed - {"__pycache__"} == {*PACKAGES, "algorun-rank.pth"}
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


def test_a_report_without_its_extra_names_it_and_with_it_needs_nothing_else(bare, wheel, tmp_path):
    (tmp_path / "job" / "logs").mkdir(parents=True)
    (tmp_path / "job" / "logs" / "algo-1-1795400000.log").write_text("train_loss: 0.5\n")
    command = ("-I", "-m", "algorun", "report", tmp_path / "job")
    without = subprocess.run((bare, *command), capture_output=True, text=True, timeout=60)
    assert without.returncode == 64
    fix = f"uv pip install --python {bare} 'jinja2>=3.1'"  # an environment without pip
    assert without.stderr == f"algorun: error: algorun report: jinja2 is not installed; fix: {fix}\n"
    python = environment(tmp_path / "with", wheel)
    for name in ("jinja2", "markupsafe"):
        (site_packages(python) / name).symlink_to(Path(importlib.util.find_spec(name).origin).parent)
    assert "1 metric of 1 host" in run(python, *command)


def test_bundled_jobs_run_by_name_beside_torch(wheel, tmp_path):
    python = environment(tmp_path, wheel, see_ours=True)
    assert "--epochs" in run(python, "-m", "algorun_train.jobs.ddp", "--help", cwd=tmp_path)
    assert run(python, "-c", "import algorun_train; print(algorun_train.__file__)").startswith(str(tmp_path))


def test_an_editable_install_is_the_checkout(tmp_path):
    pytest.importorskip("editables", reason="what editable installs need (pip install -e '.[test]')")
    python = environment(tmp_path, "--editable", ROOT, see_ours=True)  # the wheel is built by what it sees
    assert run(python, "-I", "-c", "import algorun; print(algorun.__file__)").startswith(str(ROOT / "launcher"))
    assert run(python, "-I", "-m", "algorun", "--version").startswith("algorun ")
