"""The number of a process that has ended may be a stranger's: no signal reaches it, and all of our own processes end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.launcher.whole.running import PROGRAMS

ROUNDS = 12
LIMIT_S = 120
NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]


# The other seeds are more draws of the same game.
@pytest.mark.slow(but=["0"])
@pytest.mark.parametrize("seed", range(6))
def test_strangers_with_the_numbers_of_ended_ranks_live(seed, tmp_path):
    """In a PID namespace, where the next number can be chosen. Ranks end at once, leave orphans, or stay; the owner or an engine
    starts them; strangers lead a session, or have lost its leader; the owner kills what is left, or is killed itself."""
    argv = NAMESPACE[:1] + NAMESPACE[3:] if os.getuid() == 0 else NAMESPACE
    if shutil.which("unshare") is None:
        pytest.skip("no unshare (util-linux)")
    allowed = subprocess.run([*argv, "true"], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if allowed.returncode:
        pytest.skip(f"this machine gives no PID namespace: {allowed.stderr.strip()}")
    words = [sys.executable, str(PROGRAMS / "reused_pids.py"), str(seed), str(ROUNDS), str(tmp_path)]
    done = subprocess.run([*argv, *words], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
