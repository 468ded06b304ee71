"""/opt/ml of a simulated host is its own, also for a script with this path written into it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from algorun.commands.simulate import shared_warning
from algorun.common import own_opt_ml
from algorun.job.request import LaunchRequest
from tests.conftest import algorun

SCRIPT = """
import os, pathlib
assert os.environ["ALGORUN_CHECKPOINT_DIR"].endswith("/checkpoints")
found = sorted(os.listdir("/opt/ml/checkpoints"))
pathlib.Path("/opt/ml/checkpoints", os.environ["SM_CURRENT_HOST"]).write_text("x")
print("found", found, sorted(set(os.listdir("/opt")) - {"ml"}), os.getuid())
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def needs_mounts(tmp_path):
    if why := own_opt_ml.why_shared(tmp_path, []):
        pytest.skip(f"this machine gives no process an /opt/ml of its own: {why}")


def test_hosts_and_runs_do_not_meet_in_a_folder_that_a_script_names(tmp_path, script, nothing_left):
    needs_mounts(tmp_path)
    before = sorted(os.listdir("/opt"))
    for _ in range(2):
        done = algorun("simulate", "-j", "2x1", script.name, cwd=tmp_path, ALGORUN_TEST=nothing_left)
        assert done.code == 0, done.text
        others = sorted(set(before) - {"ml"})
        assert done.text.count(f"found [] {others} {os.getuid()}") == 2
        assert "warning" not in done.text
    for host in ("algo-1", "algo-2"):
        assert os.listdir(tmp_path / "algorun-simulate" / host / "checkpoints") == [host]
    assert sorted(os.listdir("/opt")) == before


PYTHON = "/usr/bin/python3"  # which every user may start
AS_USER = """
import os, subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from algorun.common import own_opt_ml
base = Path(sys.argv[1])
why = own_opt_ml.why_shared(base, [])
print("why", why)
if not why:
    bind = own_opt_ml.Bind(base.parent / "data", base / "input", read_only=True)
    command = "touch /opt/ml/mine && test -e /opt/ml/input/a && ! touch /opt/ml/input/a"
    subprocess.run(["sh", "-c", command], preexec_fn=own_opt_ml.mount(base, [bind]), check=True)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.skipif(not os.path.exists(PYTHON), reason=f"no {PYTHON}")
def test_a_user_who_is_not_root_has_it_too(tmp_path):
    """In a user namespace. A kernel may forbid them, and then it says why."""
    shutil.copytree(Path(own_opt_ml.__file__).parents[1], tmp_path / "source" / "algorun")
    (tmp_path / "base" / "input").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_text("")
    for path in (tmp_path / "base", tmp_path / "data", tmp_path / "data" / "a"):
        os.chown(path, 1000, 1000)
    for path in (tmp_path, *tmp_path.parents):  # pytest opens its folders to their owner alone
        if path.stat().st_mode & 0o055 != 0o055:
            path.chmod(0o755)
    done = subprocess.run(
        [PYTHON, "-B", "-c", AS_USER, tmp_path / "base", tmp_path / "source"],
        user=1000, group=1000, extra_groups=[], capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout != "why \n" or (tmp_path / "base" / "mine").stat().st_uid == 1000


def test_a_machine_that_does_not_allow_it_warns_a_script_that_names_the_folder(tmp_path, script):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "main.py").write_text("print('no folder is named')\n")
    why = "unshare: Operation not permitted"
    assert shared_warning(LaunchRequest(target=script.name, cwd=str(tmp_path)), why) == (
        "warning: train.py names /opt/ml, and all simulated hosts share this machine's (unshare: Operation not permitted): "
        "they find there what others, or earlier runs, have left; "
        "fix: use ALGORUN_CHECKPOINT_DIR, SM_MODEL_DIR and SM_OUTPUT_DATA_DIR"
    )
    assert shared_warning(LaunchRequest(target="main.py", cwd=str(tmp_path / "other")), why) == ""
    assert shared_warning(LaunchRequest(target="ddp", cwd=str(tmp_path)), why) == ""


def test_what_the_job_reads_in_opt_ml_stays_visible(tmp_path, monkeypatch):
    place = tmp_path / "opt" / "ml"
    (place / "code").mkdir(parents=True)
    monkeypatch.setattr(own_opt_ml, "PLACE", str(place))
    (tmp_path / "link").symlink_to(place / "code")
    assert own_opt_ml.why_shared(tmp_path, ["/usr", str(tmp_path / "link")]) == f"{tmp_path}/link lies there"
