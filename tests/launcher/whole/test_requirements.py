"""What pip installs before a job starts: requirements, packages, limits, stops."""

from __future__ import annotations

import signal
import time

import pytest

from .code_folders import HOSTS, PRINTS, Cluster, local_package, tree


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
    assert text.startswith("setup: algo-2, exit 64: pip install -r requirements.txt: failed with exit code 1; fix: ")
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


# The same code with another value or at another moment.
@pytest.mark.slow(but=["pyproject.toml"])
@pytest.mark.parametrize("kind", ["setup.py", "pyproject.toml"])
def test_a_package_is_installed_and_run_as_a_module(kind, tmp_path, nothing_left, site):
    base = tree(tmp_path, "algo-1", ("algo-1",), sagemaker_program="algorun_test_pkg", depth=2)
    local_package(base / "code", "algorun_test_pkg")
    if kind == "setup.py":
        (base / "code" / "setup.py").write_text("# its presence decides, as under sagemaker-training\n")
    codes, outs = Cluster(tmp_path, nothing_left, ("algo-1",), **site).end()
    assert codes == [0], outs
    assert "[0 algo-1] package ran ['--depth', '2']" in outs["algo-1"]


@pytest.mark.usefixtures("nothing_beside")
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
