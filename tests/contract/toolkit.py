"""AWS's sagemaker-training, run on job folders up to the point where it starts the user's program.

A program of its own, so that one start serves a whole table: cases come as JSON on stdin, what the toolkit would have
started goes as JSON to the file that is named. Each case has a process: the toolkit reads SAGEMAKER_BASE_DIR when it is
imported, and changes its own environment. It runs `trainer.train()`, the whole of it; replaced are only the start of
processes, the wait for host names, sshd and the number of CPUs.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path


def observe(case: dict, log: str) -> dict:
    """What the toolkit starts in this job folder: argv, environment and folder, or why it refuses."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.clear()
    os.environ.update(case["environ"])
    # sys.path as the `train` command of a container has it: the folder of the command, then the user's PYTHONPATH.
    extra = [item for item in case["environ"].get("PYTHONPATH", "").split(":") if item]
    sys.path[:] = [os.path.dirname(sys.executable), *extra, *sys.path[1:]]

    from sagemaker_training import entry_point, environment, intermediate_output, mpi, process, trainer

    started: list[dict] = []

    def note(cmd, *_args, cwd=None, **_options):
        if "pip" not in cmd[:3]:  # a package is installed first
            started.append({"argv": cmd, "environ": dict(os.environ), "cwd": cwd})

    process.check_error = note
    environment.num_cpus = lambda: case["cpus"]
    entry_point._dns_lookup = lambda host: None
    intermediate_output.start_sync = lambda *_, **__: None
    mpi.MasterRunner._setup = lambda self: None
    mpi._write_status_file = lambda *_: True
    mpi.time.sleep = lambda seconds: None
    try:
        trainer.train()
    except SystemExit:
        pass
    if started:
        return started[0]
    failure = Path(environment.output_dir) / "failure"
    return {"refused": failure.read_text() if failure.exists() else Path(log).read_text()}


def main(target: str) -> None:
    cases = json.load(sys.stdin)
    import boto3  # noqa: F401  # what the toolkit imports and never changes is loaded once, for all cases
    import numpy  # noqa: F401
    import paramiko  # noqa: F401

    found = {}
    for case in cases:
        answer = f"{target}.{case['name']}"
        child = os.fork()
        if child == 0:
            try:
                seen = observe(case, f"{answer}.log")
            except BaseException:
                seen = {"refused": traceback.format_exc()}
            Path(answer).write_text(json.dumps(seen))
            os._exit(0)
        os.waitpid(child, 0)
        found[case["name"]] = json.loads(Path(answer).read_text())
    Path(target).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
