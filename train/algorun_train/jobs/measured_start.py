"""What a rank runs under ALGORUN_PREFLIGHT: `measured_start KIND SECONDS COMMAND ..` measures, and then becomes COMMAND.

The ranks meet on the port that JAX's coordinator would have: COMMAND needs its own port, which may take a while to be free again.
The measurement is a child, so that COMMAND starts in a process that holds neither GPU memory nor threads.
"""

import os
import subprocess
import sys

from algorun.common.errors import ExitCode

MEASURE = "measure"  # as the command: the child that measures
COORDINATOR = "JAX_COORDINATOR_ADDRESS"
# Its times and steps are not the job's, and torchrun serves a store on the job's port only.
NOT_FOR_THE_CHILD = ("ALGORUN_SHIM", "ALGORUN_TRACE_STEPS", "TORCHELASTIC_USE_AGENT_STORE")
LIMIT_S = 900.0  # beyond the seconds of the measurement: imports, and the waits of collectives, which end earlier


def main(argv: list[str]) -> int:
    """Returns the exit code of a measurement that ends the job; else it does not return."""
    kind, seconds, *command = argv
    if command == [MEASURE]:
        return _measure(kind, float(seconds))
    environ = {name: value for name, value in os.environ.items() if name not in NOT_FOR_THE_CHILD}
    if COORDINATOR in environ:
        environ["MASTER_PORT"] = environ[COORDINATOR].rpartition(":")[2]
    child = [sys.executable, "-I", "-u", "-m", "algorun_train.jobs.measured_start", kind, seconds, MEASURE]
    done = subprocess.run(child, env=environ, timeout=LIMIT_S + float(seconds), check=False)
    if done.returncode:
        return done.returncode if done.returncode > 0 else 128 - done.returncode
    sys.stdout.flush()
    os.execvp(command[0], command)


def _measure(kind: str, seconds: float) -> int:
    from . import measure_job  # imports torch
    from .measure import MeasureOptions

    found = measure_job.measured(MeasureOptions(seconds=seconds))
    if found and kind == "strict":
        print(f"error: ALGORUN_PREFLIGHT=strict: {'; '.join(each.text for each in found)}", file=sys.stderr, flush=True)
        return ExitCode.PREFLIGHT
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
