"""output/failure: as the user's script writes it, and on a disk without room."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.conftest import FAILS_ALONE, algorun

from .running import simulate

# As AWS's own examples of training containers do it.
SAYS = """
import os, sys, time
rank = int(os.environ['RANK'])
if rank == int(sys.argv[1]):
    with open(os.environ['SAGEMAKER_BASE_DIR'] + '/output/failure', 'w') as file:
        file.write('Exception during training: no data of class 7')
    sys.exit(int(sys.argv[2]))
time.sleep(float(sys.argv[3]))
"""


@pytest.fixture
def says(tmp_path):
    (tmp_path / "train.py").write_text(SAYS)
    return tmp_path / "train.py"


def test_what_the_script_wrote_opens_the_failure_of_every_host(says, tmp_path, nothing_left):
    done = simulate("native", says, 3, 255, 60, folder=tmp_path, marker=nothing_left, **FAILS_ALONE)
    assert done.code == 255, done.text
    assert done.failure("algo-1") == done.failure("algo-2")
    assert done.failure("algo-1").splitlines() == [
        "Exception during training: no data of class 7",
        "exit: rank 3 on algo-2, exit 255, attempt 1: no message on stderr",
    ]
    full = (done.folder / "algo-1" / "output" / "data" / "failure-full.txt").read_text()
    assert full.startswith("Exception during training: no data of class 7\nexit: rank 3 on algo-2")
    assert done.result("algo-1")["code"] == 255


def test_a_job_that_succeeds_keeps_what_the_script_wrote(says, tmp_path, nothing_left):
    """AWS's toolkit leaves the file, and the job has succeeded: the exit code decides."""
    done = simulate("native", says, 3, 0, 0, folder=tmp_path, marker=nothing_left)
    assert done.code == 0, done.text
    assert done.failure("algo-2") == "Exception during training: no data of class 7"
    assert (done.folder / "algo-2" / "output" / "success").exists()
    assert "Exception during training" not in done.err


def test_what_the_script_wrote_in_an_earlier_attempt_is_that_attempts(says, tmp_path, nothing_left):
    says.write_text(SAYS.replace("sys.exit(", "os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and sys.exit("))
    done = algorun(
        "simulate",
        "-j",
        "2x2",
        "--restarts",
        "1",
        str(says),
        "3",
        "9",
        "1",
        cwd=tmp_path,
        ALGORUN_TEST=nothing_left,
        **FAILS_ALONE,
    )
    assert done.code == 0, done.text
    first = (done.folder / "algo-1" / "output" / "data" / "failure-attempt-1.txt").read_text()
    assert first.startswith(
        "Exception during training: no data of class 7\nexit: rank 3 on algo-2, exit 9, attempt 1/2"
    )


def test_secrets_of_the_job_are_in_nothing_that_the_launcher_writes(tmp_path, nothing_left):
    (tmp_path / "train.py").write_text(
        "import argparse, os, time\n"
        "with open(os.environ['SAGEMAKER_BASE_DIR'] + '/output/failure', 'w') as file:\n"
        "    file.write('no access for hunter2 with wJalrXUtnFEMI')\n"
        "parser = argparse.ArgumentParser(prog='train.py')\n"
        "parser.add_argument('--db_password', type=int)\n"
        "time.sleep(60) if os.environ['RANK'] == '0' else parser.parse_args()\n"
    )
    done = algorun(
        "simulate", "-j", "2x1", "--restarts", "1", str(tmp_path / "train.py"), "--db_password", "hunter2", cwd=tmp_path,
        ALGORUN_TEST=nothing_left, AWS_SECRET_ACCESS_KEY="wJalrXUtnFEMI", **FAILS_ALONE,
    )  # fmt: skip
    assert done.code == 68, done.text
    assert "argument --db_password: invalid int value: '***'" in done.last
    data = done.folder / "algo-1" / "output" / "data"
    files = [
        data.parent / "failure",
        *(data / name for name in ("failure-full.txt", "failure-attempt-1.txt", "result.json")),
    ]
    for file in files:
        text = file.read_text()
        assert "hunter2" not in text
        assert "wJalrXUtnFEMI" not in text
        assert "***" in text
    own = [line for line in done.text.splitlines() if not line.startswith("[")]  # a rank's own lines are the user's
    assert not [line for line in own if "hunter2" in line or "wJalrXUtnFEMI" in line]


@pytest.fixture
def small_disk(tmp_path):
    """A job folder whose output is a file system of 8 MiB and 300 files."""
    output = tmp_path / "ml" / "output"
    output.mkdir(parents=True)
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    argv = ["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=300", "tmpfs", str(output)]
    mounted = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    yield output
    subprocess.run(["umount", "-l", str(output)], timeout=20, check=True)


@pytest.mark.parametrize("end", ["os.write(full, b'x')", "sys.exit('no words about disks')"])
def test_a_full_output_disk_still_takes_the_failure(end, small_disk, tmp_path, nothing_left):
    """And, in a Processing job as this one is, the exit message."""
    (tmp_path / "ml" / "config").mkdir()
    (tmp_path / "ml" / "config" / "resourceconfig.json").write_text('{"hosts": ["algo-1"], "current_host": "algo-1"}')
    (tmp_path / "train.py").write_text(
        "import itertools, os, sys\n"
        "os.chdir(os.environ['SAGEMAKER_BASE_DIR'] + '/output/data')\n"
        "full = os.open('full', os.O_WRONLY | os.O_CREAT)\n"
        "try:\n    while True: os.write(full, bytes(4096))\nexcept OSError: pass\n"
        "try:\n    for number in itertools.count(): open(f'file-{number}', 'w').close()\nexcept OSError: pass\n"
        f"{end}\n"
    )
    environ = {"ALGORUN_TEST": nothing_left, "SAGEMAKER_BASE_DIR": str(tmp_path / "ml"), **FAILS_ALONE}
    done = algorun("run", "train.py", cwd=tmp_path, **environ)
    assert done.code == 1, done.text
    status = os.statvfs(small_disk)
    assert status.f_bavail * status.f_frsize <= 8192, "what was kept and not needed is all that is free"
    lines = (small_disk / "failure").read_text().splitlines()
    assert lines[0].startswith("ex"), lines
    assert lines[-1].startswith(f"hint: disk full: {small_disk} has 0 MiB free of 8 MiB and no free inodes; ")
    assert (small_disk / "message").read_text() == (small_disk / "failure").read_text()
    assert not list(small_disk.glob(".*"))
    assert "No space left on device" in done.out
