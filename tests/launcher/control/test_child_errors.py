"""A launcher within the script: whose exception is the cause, and when it is none."""

from __future__ import annotations

import pytest

from algorun.control.failures.failure import Raised
from algorun.control.member.rank_failures import RankFailures

RANK, SHELL, LAUNCHER, WORKER, OTHER = 100, 101, 102, 103, 104
CODE = "/opt/ml/code"


def trace(words: str, line: int = 4, file: str = "inner.py") -> str:
    return f'Traceback (most recent call last):\n  File "{CODE}/{file}", line {line}, in <module>\n    ..\n{words}'


def child(
    at: float = 1.0, pid: int = WORKER, words: str = "vocab is empty", parents: tuple[int, ...] = (RANK,), **more
) -> Raised:
    commands = tuple((each, f"program {each}") for each in (pid, *parents))
    return Raised(0, pid, at, "ValueError", words, trace(f"ValueError: {words}"), commands, **more)


def own(
    *ended: tuple[int, int],
    at: float = 1.2,
    kind: str = "subprocess.CalledProcessError",
    command: str = "",
    pid: int = RANK,
) -> Raised:
    words = "Command '['python', 'inner.py']' returned non-zero exit status 1."
    return Raised(0, pid, at, kind, words, trace(f"{kind}: {words}", 7, "train.py"), ((pid, "train"),), ended, command)


def ranks(*reports: Raised) -> RankFailures:
    found = RankFailures("algo-1")
    found.begin({0: 0}, code=CODE)
    for each in reports:
        assert found.raised(each.at, 0, each, is_rank=False) is None
    return found


def blamed(error: Raised, *reports: Raised, printed: str = "", stderr: str = ""):
    return ranks(*reports).raised(error.at, 0, error, is_rank=True, tails=(printed, stderr))


def test_the_exception_of_the_very_child_is_the_cause_and_the_wrapper_comes_after_it():
    failure = blamed(own((WORKER, 1)), child())
    assert failure.message == f"ValueError: vocab is empty (process {WORKER}, then CalledProcessError)"
    assert failure.place == "inner.py:4"
    assert failure.traceback.splitlines()[-2] == "ValueError: vocab is empty"
    assert failure.traceback.splitlines()[-1].startswith(
        f"Then, in process {RANK}: subprocess.CalledProcessError: Command"
    )
    assert failure.traceback.endswith("(at train.py:7)")


def test_wrappers_of_wrappers_are_followed_down_to_the_first():
    launcher = own(
        (WORKER, 1),
        (OTHER, -15),
        at=1.5,
        kind="torch.distributed.elastic.multiprocessing.errors.ChildFailedError",
        pid=LAUNCHER,
    )
    failure = blamed(own((LAUNCHER, 1), at=1.6), child(), launcher)
    assert (
        failure.message
        == f"ValueError: vocab is empty (process {WORKER}, then ChildFailedError, then CalledProcessError)"
    )


def test_of_several_children_the_one_that_is_no_peer_error_is_the_cause():
    peer = child(at=0.9, pid=OTHER, words="[gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:1")
    assert "vocab is empty" in blamed(own((OTHER, 1), (WORKER, 1)), peer, child()).message


@pytest.mark.parametrize(
    ("error", "reports"),
    [
        (own((OTHER, 1)), [child()]),  # another process has failed than the one that raised
        (own(kind="RuntimeError"), [child()]),  # the script's own error, whatever was before
        (own((0, 1), command="false"), [child()]),  # known by its command only, which is another one
        (own((0, 1), command=f"program {WORKER}"), [child(parents=(OTHER,))]),  # below another process than the script's
        (own((0, 2), command=f"program {WORKER}"), [child()]),  # another exit status than Python's
        (own((0, 1), at=9.0, command=f"program {WORKER}"), [child()]),  # long after
    ],
)  # fmt: skip
def test_an_exception_that_the_script_has_handled_is_never_the_cause(error, reports):
    failure = blamed(error, *reports)
    assert failure.message.startswith(f"{error.type}: Command")
    assert failure.place == "train.py:7"
    before = f"earlier, in process {WORKER} below this rank: ValueError: vocab is empty (at inner.py:4)"
    assert failure.traceback.splitlines()[0] == before


def test_a_retry_that_fails_again_names_the_second_child():
    failure = blamed(own((OTHER, 1), at=3.0), child(), child(at=2.9, pid=OTHER, words="second"))
    assert failure.message.startswith(f"ValueError: second (process {OTHER}")


def test_a_child_that_is_known_by_its_command_only_is_found():
    assert "vocab is empty" in blamed(own((0, 1), command=f"program {WORKER}"), child()).message


def test_below_a_shell_the_exception_counts_unless_the_shell_told_of_another_error():
    below = child(parents=(SHELL, RANK))
    printed = f"{below.traceback}\n"
    assert "vocab is empty" in blamed(own((SHELL, 1)), below, printed=printed).message
    other = blamed(own((SHELL, 1)), below, printed=f"{printed}cp: cannot stat 'model.pt': No such file or directory\n")
    assert other.message.startswith("subprocess.CalledProcessError")
    assert "(last output: cp: cannot stat 'model.pt': No such file or directory)" in other.message


def test_the_words_of_a_child_that_is_no_python_are_quoted():
    failure = blamed(own((OTHER, 2)), printed="reading\nls: cannot access '/no/such': No such file or directory\n")
    assert failure.message.endswith("(last output: ls: cannot access '/no/such': No such file or directory)")
    # A line on stdout that the script has printed before, and whose pipe was read after the other.
    said = "ls: cannot access '/no/such': No such file or directory"
    late = blamed(own((OTHER, 2)), printed=f"{said}\nwithout\n", stderr=f"{said}\n")
    assert late.message == failure.message
    # Python has printed the exception already when its report is read.
    own_words = own((OTHER, 2)).traceback.replace("    ..\n", '    call()\n  File "a.py", line 1, in b\n' * 3)
    assert blamed(own((OTHER, 2)), printed=f"{said}\n{own_words}\n").message == failure.message
    old = blamed(own((OTHER, 2)), printed=f"{said}\n" + "epoch\n" * 9, stderr=f"{said}\n")
    assert "last output" not in old.message


def exited(code: int, *reports: Raised, printed: str = "", at: float = 1.5):
    return ranks(*reports).exited(at, 0, code, printed, printed)


def test_a_shell_that_leaves_with_the_code_of_its_child_leaves_because_of_it():
    failure = exited(1, child(), printed=child().traceback)
    assert (failure.kind, failure.code, failure.place) == ("exception", 1, "inner.py:4")
    assert failure.message == "ValueError: vocab is empty"


@pytest.mark.parametrize(
    ("code", "said", "message"),
    [
        (1, "checkpoint: quota of /fsx is used up", "checkpoint: quota of /fsx is used up"),
        (1, "cleaning up", "ValueError: vocab is empty"),
        (1, "[2026-01-01] [ERROR] [launch.py:325:sigkill_handler] exits with return code = 1", "ValueError: vocab is empty"),
        (3, "giving up", "giving up"),
        (3, "", "ValueError: vocab is empty"),
    ],
)  # fmt: skip
def test_what_a_shell_says_after_the_exception_of_a_child(code, said, message):
    failure = exited(code, child(), printed=f"{child().traceback}\n{said}")
    assert failure.message == message
    assert failure.code == code


def test_a_line_on_stdout_that_arrives_late_hides_no_error_of_the_shell():
    """The shell has said `without`, then the error. The two pipes are read one after the other."""
    stderr = f"{child().traceback}\ncheckpoint: quota of /fsx is used up"
    failure = ranks(child()).exited(1.5, 0, 1, stderr, f"{stderr}\nwithout")
    assert failure.message == "checkpoint: quota of /fsx is used up"
    old = (
        "cannot load the plugin\n"  # the exception itself went to stdout: older lines on stderr say nothing of the end
    )
    failure = ranks(child()).exited(1.5, 0, 1, old, f"{old}{child().traceback}\nwithout")
    assert failure.message == "ValueError: vocab is empty"


def test_an_exception_long_before_the_end_is_not_the_cause():
    assert exited(1, child(), at=60.0, printed="out of quota").message == "out of quota"


def test_the_exception_inside_a_message_comes_first():
    """torch's DataLoader and mp.spawn quote the worker's traceback in their message."""
    words = (
        f"Caught ValueError in DataLoader worker process 0.\nOriginal {trace('ValueError: image 2 is truncated', 5)}"
    )
    raised = Raised(0, RANK, 1.0, "ValueError", words, trace(f"ValueError: {words}", 8, "train.py"))
    failure = blamed(raised)
    assert failure.message == "ValueError: image 2 is truncated (Caught ValueError in DataLoader worker process 0.)"
    assert failure.place == "inner.py:5"


def test_reports_of_children_are_bounded():
    found = ranks(*(child(at=1 + number / 1000, pid=200 + number) for number in range(500)))
    assert found.raised(2.0, 0, own((699, 1), at=2.0), is_rank=True).message.startswith(
        "ValueError: vocab is empty (process 699"
    )


ELASTIC = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"
GONE = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:8403. An error elsewhere."


def test_a_torchrun_in_a_shell_whose_worker_lost_a_peer_is_a_peer_error():
    """Its summary is no error of its own, though the words of the worker stand before it."""
    worker = child(words=GONE, parents=(LAUNCHER, RANK))
    summary = "\n============\ninner.py FAILED\n------------\nRoot Cause (first observed failure):\n[0]:\n  exitcode  : 1 (pid: 103)\n======"
    launcher = Raised(
        0, LAUNCHER, 1.4, ELASTIC, summary, trace(f"{ELASTIC}: {summary}"), ((LAUNCHER, "torchrun"),), ((WORKER, 1),)
    )
    marked = "\n".join(f"[rank0]: {line}" for line in worker.traceback.split("\n"))
    printed = f"{marked}\nE0101 1 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1)\n{launcher.traceback}\n"
    failure = exited(1, worker, launcher, printed=printed)
    assert failure.message.startswith("ValueError: [/pytorch/third_party/gloo")
    assert failure.message.endswith(f"(process {WORKER}, then ChildFailedError)")
    assert failure.secondary
    without_reports = exited(1, printed=printed)
    assert without_reports.kind == "exit"
    assert without_reports.message.startswith("[rank0]: ValueError: [/pytorch/third_party/gloo")
    assert without_reports.secondary


@pytest.mark.parametrize(
    ("at", "said", "message"),
    [
        (20.0, "", "ValueError: vocab is empty"),  # interpreters take seconds to end, with torch and on a busy machine
        (20.0, "now without the vocab", "now without the vocab"),
        (90.0, "", "ValueError: vocab is empty"),  # what was printed last
    ],
)
def test_long_after_the_exception_nothing_may_have_been_printed_since(at, said, message):
    failure = exited(1, child(), printed=f"{child().traceback}\n{said}", at=at)
    assert failure.message == message
    assert failure.kind == ("exception" if at < 60 and not said else "exit")
