"""A stop reaches the training below a wrapper of any kind, each process once, and is not the end of a log's reader."""

from __future__ import annotations

import signal
import time

import pytest

from tests.conftest import ENGINES

from .running import Running

WORK = r"""
import os, signal, sys, time
rank, told = os.environ["ALGORUN_TEST_RANK"], []
signal.signal(signal.SIGTERM, lambda *_: told.append(time.monotonic()))
os.write(1, f"ready {rank}\n".encode())
while not told:
    time.sleep(0.02)
time.sleep(1)
os.write(1, f"last line of {rank}\n".encode())
open(f"saved-{rank}-{os.getpid()}", "w").write(str(len(told)))
"""
SPAWN = """
import multiprocessing, runpy
def train(): runpy.run_path("work.py")
if __name__ == "__main__":
    children = [multiprocessing.get_context("spawn").Process(target=train) for _ in range(2)]
    for child in children: child.start()
    for child in children: child.join()
"""
CALL = "import subprocess, sys; subprocess.run([sys.executable, 'work.py'], check=True)"
READ = """
import subprocess, sys
with subprocess.Popen([sys.executable, "work.py"], stdout=subprocess.PIPE, text=True) as child:
    for line in child.stdout: print("relayed", line, end="", flush=True)
"""
WRAPPERS = """
export ALGORUN_TEST_RANK=$RANK
case $RANK in
0) exec python call.py ;;
1) python work.py 2>&1 | tee log ;;
2) python work.py; python work.py; echo "the end of a script" ;;
3) exec python spawn.py ;;
4) exec python read.py ;;
5) (sleep 0.1; exec python call.py) & wait ;;
6) while true; do python work.py; done ;;
7) exec timeout --foreground 60 python work.py ;;
8) setsid --wait python work.py ;;
9) python work.py 2>&1 | while read line; do echo "seen $line"; done ;;
10) all=$(python work.py 2>&1 | tee /dev/stderr); echo "the whole: $all" ;;
esac
"""


def write_programs(folder):
    for name, text in (("work", WORK), ("spawn", SPAWN), ("call", CALL), ("read", READ)):
        (folder / f"{name}.py").write_text(text)
    (folder / "train.sh").write_text(WRAPPERS)


# What a stop finds below a rank is the same under every engine: launcher/control/test_stop_order.py.
@pytest.mark.slow(but=["native"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_stop_reaches_the_training_below_every_kind_of_wrapper(engine, tmp_path, nothing_left):
    write_programs(tmp_path)
    job = Running(engine, "train.sh", folder=tmp_path, marker=nothing_left, layout="1x11", ALGORUN_GRACE_S="30")
    job.wait_for("ready ", 12)  # two of the spawned rank
    begun = time.monotonic()
    job.supervisor("algo-1").send_signal(signal.SIGTERM)
    assert job.end() == 0, job.log.read_text()
    assert time.monotonic() - begun < 20
    text = job.log.read_text()
    assert text.strip().splitlines()[-1] == "stopped nnodes=1 world_size=11 why=SIGTERM on algo-1"
    saved = sorted(path.name.split("-")[1] for path in tmp_path.glob("saved-*"))
    assert saved == ["0", "1", "10", "2", "3", "3", "4", "5", "6", "7", "8", "9"]  # no shell goes on after the stop
    assert {path.read_text() for path in tmp_path.glob("saved-*")} == {"1"}
    assert "last line of 1" in (tmp_path / "log").read_text(), "tee has ended before its writer"
    assert "relayed last line of 4" in text
    assert "seen last line of 9" in text
    assert "last line of 10" in text.partition("the whole: ")[2]
    assert "the end of a script" not in text


def test_a_stop_without_a_save_says_so(tmp_path, nothing_left):
    (tmp_path / "train.py").write_text(
        "import os, signal, time\n"
        "if os.environ['RANK'] == '0': signal.signal(signal.SIGTERM, lambda *_: os._exit(0))\n"
        "if os.environ['RANK'] == '1': signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    job = Running("native", "train.py", folder=tmp_path, marker=nothing_left, layout="2x2", ALGORUN_GRACE_S="1")
    job.wait_for("] ready", 4)
    job.supervisor("algo-1").send_signal(signal.SIGTERM)
    assert job.end() == 0, job.log.read_text()
    assert job.log.read_text().strip().splitlines()[-1] == (
        "stopped nnodes=2 world_size=4 why=SIGTERM on algo-1; 3 of 4 ranks were ended by it before they could save"
    )
