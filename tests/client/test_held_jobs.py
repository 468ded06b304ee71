"""`submit --hold-on-failure` and `algorun shell JOB HOST`: on this machine, and through boto3 against the test server.

Sessions of AWS Systems Manager need an account: there a program `aws` of the test says what it was asked to do.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest

from tests.client.places import BUCKET, HERE, server_with_bucket
from tests.conftest import clean_environ

PROGRAM = """\
import os, sys
print("rank", os.environ["RANK"], flush=True)
if os.environ["RANK"] == "1":
    open("scratch", "w").write("left by rank 1")
    sys.exit(3)
"""
AWS = (
    "--image",
    "algorun:test",
    "--role",
    "arn:aws:iam::123456789012:role/Job",
    "--instance",
    "ml.m5.large",
    "--bucket",
    BUCKET,
)
JOB = ("--hosts", "2", "--slots", "1", "train.py")


class Laptop:
    def __init__(self, folder, environ, place, submit):
        self.folder, self.environ, self.place, self.submit = folder, environ, place, submit

    def __call__(self, command, *words, stdin="", **environ):
        argv = [sys.executable, "-I", "-m", "algorun", command, *self.place, *words]
        return subprocess.run(
            argv,
            cwd=self.folder,
            env={**self.environ, **environ},
            input=stdin,
            text=True,
            capture_output=True,
            timeout=90,
            check=False,
        )

    def send(self, *options):
        """Submits the job; returns its name."""
        sent = self("submit", *self.submit, "--detach", *options, *JOB)
        assert sent.returncode == 0, sent.stderr
        return re.search(r"job (\S+-\d{4}-[0-9a-f]{6})", sent.stdout + sent.stderr)[1]

    def until(self, job, text, count=1):
        deadline = time.monotonic() + 60
        while True:
            lines = self("logs", job).stdout
            if lines.count(text) >= count:
                return lines
            assert time.monotonic() < deadline, lines
            time.sleep(0.3)

    def end(self, job):
        assert self("stop", job).returncode == 0
        return self("logs", "-f", job)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with server_with_bucket(tmp_path_factory.mktemp("server"), "--stop-grace-s", "20") as process:
        yield process


@pytest.fixture
def folder(tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(PROGRAM)
    return code


@pytest.fixture
def here(tmp_path, folder):
    return Laptop(folder, clean_environ(ALGORUN_LOCAL_ROOT=str(tmp_path / "root")), HERE, ())


@pytest.fixture
def aws(server, folder):
    return Laptop(
        folder,
        clean_environ(ALGORUN_BUCKET=BUCKET, **server.environ()),
        (),
        (*AWS, "--project", folder.parent.name.strip("_0123456789").replace("_", "-")[:40]),
    )


@pytest.fixture
def programs(tmp_path):
    """A PATH with the programs that a session needs; `aws` prints its words."""
    for name in ("aws", "session-manager-plugin"):
        (tmp_path / name).write_text('#!/bin/sh\necho "$0" "$@"\n')
        (tmp_path / name).chmod(0o755)
    return f"{tmp_path}:/usr/bin:/bin"


# In CI there is one in containers (tests/e2e/test_local_containers.py).
@pytest.mark.slow
def test_a_shell_on_a_host_of_this_machine(here):
    job = here.send("--hold-on-failure", "1m30s")
    lines = here.until(job, "is held for 1 min 30 s", 2)
    assert (
        f"look at it with `algorun shell {job} algo-2 --where local`; `algorun stop {job} --where local` ends it"
        in lines
    )
    looked = here("shell", job, "algo-2", stdin='echo "rank $RANK: $(cat scratch)"; exit 4')
    assert (looked.stdout, looked.returncode) == ("rank 1: left by rank 1\n", 4), looked.stderr
    wrong = here("shell", job, "algo-3")
    assert wrong.returncode == 64
    assert f"shell: 'algo-3' is no host of job {job}; allowed: algo-1, algo-2" in wrong.stderr
    ended = here.end(job)
    assert "was held for " in ended.stdout
    assert ended.returncode == 74, ended.stdout
    gone = here("shell", job, "algo-2")
    assert gone.returncode == 64
    why = "no host is held: a stop ends a hold, and none begins after a stop"
    fix = "submit --hold-on-failure 30m keeps the hosts of a job that fails"
    assert f"job {job} has ended (Stopped), and {why}; fix: {fix}" in gone.stderr
    assert f"  {why}\n" in here("status", job).stdout


@pytest.mark.slow
def test_a_job_that_fails_before_its_ranks_start_says_that_no_host_is_held(here):
    (here.folder / "requirements.txt").write_text("./no-such-package\n")
    ran = here("submit", "--hold-on-failure", "1m", *JOB)
    why = "no host was held: the job failed (setup) before its ranks had started"
    assert ran.stderr.count(f"algorun: {why}\n") == 1, ran.stderr
    job = re.search(r"job (\S+-\d{4}-[0-9a-f]{6}) has failed", ran.stderr)[1]
    gone = here("shell", job, "algo-1")
    assert gone.returncode == 64
    assert f"job {job} has ended (Failed), and {why}; fix: " in gone.stderr
    assert f"  {why}\n" in here("status", job).stdout


@pytest.mark.slow
def test_a_session_with_a_host_of_sagemaker(aws, programs):
    job = aws.send("--hold-on-failure", "30m")
    aws.until(job, "is held for 30 min 0 s", 2)
    asked = aws("shell", job, "algo-2", PATH=programs)
    assert asked.returncode == 0, asked.stderr
    words = asked.stdout.split()[1:]
    assert words[:4] == ["ssm", "start-session", "--target", f"sagemaker-training-job:{job}_algo-2"]
    assert words[4] == "--region"
    missing = aws("shell", job, "algo-2", PATH="/nowhere")
    assert missing.returncode == 64
    assert "there is no program aws on PATH; fix: install the AWS CLI" in missing.stderr
    assert aws.end(job).returncode == 74


@pytest.mark.slow
def test_remote_debugging_that_is_off_is_one_error(aws, programs):
    job = aws.send("--env", "ALGORUN_HOLD_ON_FAILURE_S=60")  # an SDK's job that asks for a hold alone
    aws.until(job, "is held for 1 min 0 s")
    refused = aws("shell", job, "algo-1", PATH=programs)
    assert refused.returncode == 64
    assert f"remote debugging of job {job} is off; fix: submit --hold-on-failure 30m switches it on" in refused.stderr
    assert f"--training-job-name {job} --remote-debug-config EnableRemoteDebug=true" in refused.stderr
    assert aws.end(job).returncode == 74


@pytest.mark.slow
def test_remote_debugging_that_a_policy_forbids_is_one_warning_and_the_job_runs(server, aws, programs):
    server.faults(without_remote_debug=True)
    try:
        ran = aws("submit", *aws.submit, "--hold-on-failure", "30m", *JOB)
    finally:
        server.faults()
    assert ran.returncode == 3, ran.stderr  # at once: nothing is held
    assert ran.stderr.count("algorun: warning: --hold-on-failure: remote debugging is not allowed (AccessDenied") == 1
    assert "is held for" not in ran.stdout


WRONG = {
    "processing": (
        ("--kind", "processing"),
        "--hold-on-failure: SageMaker lets nobody into the hosts of a processing job",
    ),
    "processing by a variable": (
        ("--kind", "processing", "--env", "ALGORUN_HOLD_ON_FAILURE_S=5"),
        "--env ALGORUN_HOLD_ON_FAILURE_S: SageMaker lets nobody into the hosts of a processing job",
    ),
    "isolated": (("--network-isolation",), "--hold-on-failure: nobody gets into hosts with --network-isolation"),
    "twice": (
        ("--env", "ALGORUN_HOLD_ON_FAILURE_S=5"),
        "--hold-on-failure: contradicts --env ALGORUN_HOLD_ON_FAILURE_S",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_contradicts_a_hold_is_one_error(case, here):
    options, text = WRONG[case]
    held = () if case == "processing by a variable" else ("--hold-on-failure", "30m")
    argv = [sys.executable, "-I", "-m", "algorun", "submit", "--dry-run", *AWS[:-2], *held, *options, *JOB]
    refused = subprocess.run(
        argv, cwd=here.folder, env=here.environ, text=True, capture_output=True, timeout=90, check=False
    )
    assert refused.returncode == 64
    assert text in refused.stderr


@pytest.mark.slow
def test_a_hold_changes_no_result(here):
    """A task that is done stays done with and without it."""
    (here.folder / "train.py").write_text("print('well')")
    job = here("submit", *JOB)
    assert job.returncode == 0, job.stderr
    again = here("submit", "--hold-on-failure", "5m", *JOB)
    assert again.returncode == 0
    assert "nothing has changed" in again.stderr
