"""A job of `algorun submit --where local --docker`: what each rank finds, and what it leaves. Some files are root's alone."""

import os
import signal
import sys
import time
from pathlib import Path

HOST, RANK, WHAT = os.environ["SM_CURRENT_HOST"], os.environ["RANK"], sys.argv[1]
ML = Path("/opt/ml")
STEP = ML / "checkpoints" / HOST / f"step-{RANK}"


def leave(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.parent.chmod(0o700)
    path.write_text(text)
    path.chmod(0o600)


def save(*_: object) -> None:
    leave(STEP, "saved at the stop")
    sys.exit(0)


if WHAT == "wait":
    signal.signal(signal.SIGTERM, save)
found = {
    folder.name: sorted(path.name for path in folder.iterdir()) for folder in sorted((ML / "input/data").iterdir())
}
before = STEP.read_text() if STEP.exists() else "nothing"
print(
    f"rank {RANK} of {os.environ['WORLD_SIZE']} on {HOST}: {found}, began with {before}, uid {os.getuid()}", flush=True
)
print(
    f"variables: {os.environ['LINES']!r} {os.environ['TRAINING_JOB_NAME']} {'HOSTS_SECRET' in os.environ}", flush=True
)
leave(ML / "model" / HOST / "weights", RANK)
if WHAT == "fail" and HOST == "algo-2":
    raise SystemExit(3)
if WHAT == "write":
    try:
        (ML / "input/data/fast/new").write_text("")
    except OSError as error:
        print(f"FastFile: {error.strerror}", flush=True)
if WHAT == "wait" and before == "nothing":
    leave(STEP, "begun")
    print("waiting", flush=True)
    time.sleep(120)
