"""`algorun shell JOB HOST`: a shell on a host of a job. On the host, algorun's own `shell` gives it a rank's environment.

Source: "Access a training container through AWS Systems Manager for remote debugging" in AWS's developer guide (the target's name,
the rights, the plugin).
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping

from algorun.common.errors import UserError
from algorun_client.aws.job_state import JobState
from algorun_client.connection import Site, local_root
from algorun_client.follow.held_hosts import no_hold
from algorun_client.request.model import Kind
from algorun_client.submit.read.common_options import add_job_argument

from .find_job import open_job

PLUGIN = "session-manager-plugin"
HOLD = "submit --hold-on-failure 30m"
NEEDED = {
    "aws": "install the AWS CLI, https://docs.aws.amazon.com/cli/",
    PLUGIN: "install the Session Manager plugin of the AWS CLI",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_job_argument(parser)
    parser.add_argument("host", metavar="HOST", help="a host of the job, such as algo-2")


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Replaces this process by the way to the host; on Windows returns its exit code. Raises UserError."""
    if options.json:
        raise UserError("--json", "a shell prints no JSON", fix="drop --json")
    connection, state = open_job(options, environ)
    if state.ended:
        raise UserError(
            "shell",
            f"job {state.job} has ended ({state.status}), and {no_hold(state)}",
            fix=f"{HOLD} keeps the hosts of a job that fails",
        )
    hosts = [f"algo-{number}" for number in range(1, state.hosts.count + 1)]
    if options.host not in hosts:
        raise UserError("shell", f"{options.host!r} is no host of job {state.job}", allowed=", ".join(hosts))
    words = _on_aws(connection, state, options.host) if connection.session else _here(state, options.host, environ)
    sys.stdout.flush()
    if sys.platform == "win32":
        return subprocess.run(words, check=False).returncode
    os.execvp(words[0], words)


def _here(state: JobState, host: str, environ: Mapping[str, str]) -> list[str]:
    """The words that start `algorun shell` on a host of a job on this machine: in its container, or with its own /opt/ml."""
    from algorun_client.local.containers import Containers, container_name  # only for jobs on this machine
    from algorun_client.local.job_folder import JobFolder

    folder = JobFolder.of(local_root(environ), state.kind, state.job)
    containers = Containers.of(folder)
    if containers is None:
        return [sys.executable, "-I", "-m", "algorun", "shell", str(folder.hosts / host)]
    terminal = ["--tty"] if sys.stdin.isatty() else []
    return containers.engine.words("exec", "--interactive", *terminal, container_name(folder, host), "algorun", "shell")


def _on_aws(connection: Site, state: JobState, host: str) -> list[str]:
    """The words of the AWS CLI. Raises UserError."""
    if state.kind is not Kind.TRAINING:
        raise UserError("shell", f"{state.job} is a processing job, and SageMaker lets nobody into those")
    if not state.can_be_entered:
        switch = f"--training-job-name {state.job} --remote-debug-config EnableRemoteDebug=true"
        now = f"aws sagemaker update-training-job {switch}{connection.options}"
        raise UserError(
            "shell", f"remote debugging of job {state.job} is off", fix=f"{HOLD} switches it on; for this job: {now}"
        )
    for program, fix in NEEDED.items():
        if shutil.which(program) is None:
            raise UserError("shell", f"there is no program {program} on PATH", fix=fix)
    print("algorun: on the host, type `algorun shell` for the environment of a rank", file=sys.stderr, flush=True)
    target = f"sagemaker-training-job:{state.job}_{host}"
    return ["aws", "ssm", "start-session", "--target", target, *shlex.split(connection.options)]
