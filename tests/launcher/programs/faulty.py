"""A rank that comes to grief on request: `faulty.py MODE`, at rank 3. It says "ready" when its handler is set."""

import _socket  # noqa: F401  an ordinary import before anything else happens
import os
import signal
import subprocess
import sys
import time

MODE = sys.argv[1]
RANK = int(os.environ["RANK"])


class ParserError(Exception):
    """A class of the user's own."""


def deep(level):
    if level:
        return deep(level - 1)
    raise ParserError(f"bad record 17\nsecond line {os.environ['SM_CURRENT_HOST']}")


print(f"up {RANK}", flush=True)
time.sleep(0.5)
if RANK == 3:
    if MODE == "raise":
        deep(3)
    if MODE == "child":
        subprocess.run([sys.executable, "-c", "raise KeyError('handled')"], check=False)
        print("survived", flush=True)
        sys.exit(0)
    if MODE == "exit7":
        print("last words", file=sys.stderr, flush=True)
        sys.exit(7)
    if MODE == "abort":
        os.abort()
    if MODE in ("SIGKILL", "SIGSEGV"):
        os.kill(os.getpid(), getattr(signal, MODE))
    if MODE == "destructor":
        import atexit

        atexit.register(time.sleep, 60)
        raise ParserError("the report must not wait for the destructors")
if MODE == "child":
    sys.exit(0)
if MODE == "stop":
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    print(f"ready {RANK}", flush=True)
    while not stopped:
        time.sleep(0.02)
    time.sleep(1.5)
    print(f"saved {RANK}", flush=True)
    sys.exit(0)
if MODE == "ignore":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(f"ready {RANK}", flush=True)
time.sleep(60)
