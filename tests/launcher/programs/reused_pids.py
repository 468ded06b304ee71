"""The first process of a PID namespace: an owner starts and ends processes, and strangers get the numbers of those that have ended.

`reused_pids.py SEED ROUNDS` prints what was wrong, or nothing.
"""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from algorun.host.processes.owner import Owner, alive_in, below, kill_sessions, processes

LIMIT_S = 10.0
MARK = "ALGORUN_RUN_DIR"
# What a rank does once it may: `ends` leaves nothing, `leaves` an orphan in its session.
KINDS = {"ends": "read _", "leaves": "sleep 100 & read _", "stays": "sleep 100; :"}
# A stranger in a session of its own; the second kind of session has lost its leader.
STRANGERS = {"leader": "sleep 100; :", "orphan": "sleep 100 & :"}
WAYS = ("kill_left", "kill_sessions", "close", "killed")


def eventually(true, limit_s=LIMIT_S):
    deadline = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.005)


def of_session(session):
    return [stat.pid for stat in processes() if stat.session == session and not stat.ended]


class Supervisor:
    """An owner in a process of its own, which does what it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        there, self._words = os.pipe()
        self._answers, back = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._words)
            os.close(self._answers)
            _supervise(there, back, folder)
        os.close(there)
        os.close(back)

    def tell(self, *words: str) -> str:
        os.write(self._words, " ".join(words).encode() + b"\n")
        if not select.select([self._answers], [], [], LIMIT_S)[0]:
            raise TimeoutError(words)
        return os.read(self._answers, 4096).decode().strip()

    def close(self) -> None:
        os.close(self._words)
        os.close(self._answers)
        os.waitpid(self.pid, 0)


def _supervise(words: int, answers: int, folder: Path) -> None:
    owner = Owner(lambda pid, code: None)
    owner.guard()
    owner.clean_up(str(folder))
    owner.adopt()
    gates: dict[int, int] = {}
    for line in os.fdopen(words):
        what, *rest = line.split()
        answer = "done"
        if what == "start":
            gate, writer = os.pipe()
            argv = ["sh", "-c", KINDS[rest[0]]]
            if rest[1] == "engine":  # another process starts the rank, and collects it
                argv = [sys.executable, "-ISc", ENGINE, *argv]
            pid = owner.start(argv, {MARK: str(folder), "PATH": os.environ["PATH"]}, "/", 2, 2, what="rank", stdin=gate)
            os.close(gate)
            if rest[1] == "engine":
                eventually(lambda pid=pid: any(stat.parent == pid for stat in processes()))
                pid = next(stat.pid for stat in processes() if stat.parent == pid)
                eventually(lambda pid=pid: os.getsid(pid) == pid)
                owner.own(pid)
            gates[pid] = writer
            answer = str(pid)
        elif what == "end":
            os.close(gates.pop(int(rest[0])))
            eventually(lambda pid=int(rest[0]): owner.reap() or not os.path.exists(f"/proc/{pid}"))
            owner.forget_ended()
        elif what == "kill_left":
            eventually(lambda: owner.reap() or not owner.kill_left())
        elif what == "kill_sessions":
            sessions = [int(each) for each in rest]
            kill_sessions(sessions)
            eventually(lambda sessions=sessions: owner.reap() or not alive_in(sessions))
            owner.close()
        elif what == "close":
            owner.close()
        os.write(answers, answer.encode() + b"\n")
    os._exit(0)


ENGINE = """
import os, subprocess, sys, time
subprocess.run(sys.argv[1:], start_new_session=True)
time.sleep(100)
"""


def stranger(pid: int, kind: str) -> int | None:
    """A process of somebody else with this number, which leads a session; None if a child of another stranger has it."""
    for _ in range(200):
        if os.path.exists(f"/proc/{pid}"):
            return None
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        child = subprocess.Popen(["sh", "-c", STRANGERS[kind]], start_new_session=True, stdin=subprocess.DEVNULL)
        if child.pid == pid:
            if kind == "orphan":
                child.wait(LIMIT_S)
            return pid
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(LIMIT_S)
    raise TimeoutError(f"no process got the number {pid}")


def play(draw: random.Random, folder: Path) -> list[str]:
    """One round; returns what was wrong."""
    folder.mkdir()
    supervisor = Supervisor(folder)
    ranks = {}
    for _ in range(draw.randint(1, 4)):
        kind, by = draw.choice(list(KINDS)), draw.choice(("owner", "engine"))
        ranks[int(supervisor.tell("start", kind, by))] = kind
    ended = [pid for pid, kind in ranks.items() if kind != "stays" and draw.random() < 0.8]
    for pid in ended:
        supervisor.tell("end", str(pid))
    free = [pid for pid in ended if ranks[pid] == "ends"]
    made = [stranger(pid, draw.choice(list(STRANGERS))) for pid in free if draw.random() < 0.8]
    strangers = [pid for pid in made if pid is not None]
    way = draw.choice(WAYS)
    if way == "killed":
        os.kill(supervisor.pid, signal.SIGKILL)
    else:
        supervisor.tell(way, *map(str, ranks))
    ours = f"{MARK}={folder}".encode()
    wrong = []
    try:
        eventually(lambda: not _with(ours))
    except TimeoutError:
        wrong.append(f"{way}: processes of ours are left: {ranks}")
    wrong += [
        f"{way}: a stranger with the number {pid} was killed: {ranks}" for pid in strangers if not of_session(pid)
    ]
    for pid in strangers:
        for each in of_session(pid):
            os.kill(each, signal.SIGKILL)
    supervisor.close()
    return wrong


def _with(mark: bytes) -> list[int]:
    found = []
    for stat in processes():
        try:
            environ = Path(f"/proc/{stat.pid}/environ").read_bytes()
        except OSError:
            continue
        if mark in environ.split(b"\0") and not stat.ended:
            found.append(stat.pid)
    return found


def main() -> None:
    draw = random.Random(int(sys.argv[1]))
    for number in range(int(sys.argv[2])):
        for wrong in play(draw, Path(sys.argv[3], str(number))):
            print(wrong)
        for stat in below(processes()):
            os.kill(stat.pid, signal.SIGKILL)
        while True:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                break


if __name__ == "__main__":
    main()
