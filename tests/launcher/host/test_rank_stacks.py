"""Which processes are asked for their stacks and calls."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

from algorun.common.event_loop import Loop
from algorun.host.measuring.step_counter import Steps
from algorun.host.ranks import stacks
from algorun.host.ranks.rank_stacks import EARLIEST_S, RankStacks

PROGRAM = (
    "import faulthandler, signal, sys\n"
    "faulthandler.register(signal.SIGUSR2, file=open(sys.argv[1] % __import__('os').getpid(), 'w'))\n"
    "print(flush=True)\n"
    "sys.stdin.read()\n"
)


def answering(folder):
    """A process in a session of its own that writes its stacks on SIGUSR2, as a rank does."""
    argv = [sys.executable, "-c", PROGRAM, f"{folder}/stack-%d"]
    started = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert started.stdout.read(1)
    return started


def asking(folder, rank_pid, board=None):
    """A RankStacks whose host has one rank that runs."""
    ranks = SimpleNamespace(running=lambda: [(0, 0, rank_pid)])
    tools = SimpleNamespace(run_dir=str(folder), loop=Loop(), send=lambda message: None)
    board = board or SimpleNamespace(read=lambda _: Steps())
    return RankStacks(tools, SimpleNamespace(data=folder), "algo-1", ranks, board)


def test_a_stranger_that_has_the_number_of_an_ended_process_gets_no_signal(tmp_path):
    rank, stranger = answering(tmp_path), answering(tmp_path)
    try:
        asking(tmp_path, rank.pid).ask()
        for _ in range(500):
            if stacks.read_stacks(rank.pid, str(tmp_path)):
                break
            subprocess.run(["sleep", "0.01"], check=True)
        assert "Current thread" in stacks.read_stacks(rank.pid, str(tmp_path))
        assert stacks.read_stacks(stranger.pid, str(tmp_path)) == ""
    finally:
        for each in (rank, stranger):
            each.communicate()


def test_ranks_are_asked_for_calls_once_in_a_pause_of_half_the_shorter_limit(tmp_path):
    steps = [Steps(count=3, last_at=100.0, pid=7)]
    asked = []
    looking = asking(tmp_path, 7, SimpleNamespace(read=lambda _: steps[0]))
    looking._ask_for_calls_alone = lambda: asked.append(steps[0].last_at)
    (tmp_path / "calls-7.limit").write_text("20.0")

    def look(*times):
        for now in times:
            looking.look(now, 600.0)
        return asked

    assert look(100.0, 109.9) == []
    assert look(110.0, 111.0, 125.0) == [100.0]
    steps[0] = Steps(count=4, last_at=126.0, pid=7)
    assert look(126.0, 135.9) == [100.0]
    assert look(137.0) == [100.0, 126.0]
    (tmp_path / "calls-7.limit").write_text("0.5")
    steps[0] = Steps(count=5, last_at=200.0, pid=7)
    assert look(200.0 + EARLIEST_S - 0.1) == [100.0, 126.0], "a short pause costs nothing"
    (tmp_path / "calls-7.limit").unlink()
    assert look(499.0) == [100.0, 126.0], "without a limit of calls it is that of hangs"
    assert look(500.0) == [100.0, 126.0, 200.0]
    steps[0] = Steps()
    assert look(9000.0) == [100.0, 126.0, 200.0], "before the first step there is no limit"
