"""Failures: which one is the root, and what output/failure says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.control.failures.failure import SHOWN, SHOWN_HOSTS, Failure, listed, with_others
from algorun.control.failures.last_words import last_words
from algorun.control.hub.failure_reports import likeliest_cause
from algorun.control.member.rank_failures import RankFailures
from algorun.outcome.report import full_text

ROOT = Failure("exception", "algo-2", 1, "ValueError: bad", rank=3, traceback="Traceback ..\nValueError: bad")
PEER = Failure(
    "exception", "algo-1", 1, "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer", rank=0
)
LOST = Failure("lost", "algo-2", 66, "host lost: connection closed")


def test_a_vanished_peer_is_never_the_root():
    assert likeliest_cause([(1.0, PEER), (1.9, ROOT)]) is ROOT
    assert likeliest_cause([(1.0, PEER), (1.5, LOST)]) is LOST


def test_the_earliest_of_equals_is_the_root():
    other = Failure("exit", "algo-1", 7, "no message", rank=1)
    assert likeliest_cause([(2.0, ROOT), (1.0, other)]) is other


@pytest.mark.parametrize(
    ("tail", "told"),
    [
        (
            "Traceback (most recent call last):\n  File ..\nKeyError: 'lr'\n\n"
            "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n",
            "KeyError: 'lr'",
        ),
        (
            "bad data\n[rank0]:[W1121 10:45:16.1 ProcessGroupNCCL.cpp:1553] Warning: destroy_process_group() was not ..",
            "bad data",
        ),
        ("one\n  two  \n \n", "two"),
        ("[W1121 10:45:16.1 socket.cpp:464] waiting\n", "[W1121 10:45:16.1 socket.cpp:464] waiting"),
        ("", ""),
    ],
)
def test_what_a_program_says_behind_its_failure_is_not_quoted(tail, told):
    assert last_words(tail) == told


def test_the_headline_names_kind_rank_host_exit_and_attempt():
    assert ROOT.headline() == "exception: rank 3 on algo-2, exit 1, attempt 1: ValueError: bad"
    killed = Failure("signal", "algo-1", 137, "", rank=0, attempt=2)
    assert killed.headline() == "signal: rank 0 on algo-1, exit 137 (SIGKILL), attempt 3"
    assert LOST.headline() == "lost: algo-2, exit 66: host lost: connection closed"


@given(st.text(max_size=3000), st.text(max_size=3000), st.text(max_size=3000))
def test_the_text_is_never_longer_than_what_is_shown(message, traceback, hint):
    failure = Failure("exception", "algo-1", 1, message, rank=0, traceback=traceback, hint=hint)
    text = failure.text()
    assert len(text) <= SHOWN
    assert text.startswith("exception: rank 0 on algo-1, exit 1")


def test_a_long_message_is_cut_so_that_note_and_hint_stay_whole():
    failure = Failure("exception", "a", 1, "x" * 3000, rank=0, note="n" * 100, hint="look there")
    text = failure.text()
    assert len(text) == SHOWN
    assert text.endswith(f" ..\n{'n' * 100}\nhint: look there")


def test_a_long_traceback_keeps_its_end_and_the_hint():
    failure = Failure("exception", "a", 1, "E: x", rank=0, traceback="\n".join(map(str, range(999))), hint="look there")
    lines = failure.text().splitlines()
    assert lines[0] == "exception: rank 0 on a, exit 1, attempt 1: E: x"
    assert lines[-1] == "hint: look there"
    assert lines[-2] == "998"


HOSTNAME = (
    "[W1121 10:45:16.123456789 socket.cpp:767] [c10d] The hostname of the client socket cannot be retrieved. err=-3"
)
DESTROY = (
    "[rank0]:[W1121 10:45:16.1 ProcessGroupNCCL.cpp:1553] Warning: WARNING: destroy_process_group() was not called before "
    "program exit, which can leak resources. For more info, please see https://pytorch.org/docs/stable/distributed.html"
)
REFUSED = (
    "[W1121 10:45:16.1 socket.cpp:464] [c10d] The client socket has failed to connect to [algo-1]:29500 (errno: 111)."
)


@pytest.mark.parametrize(
    ("returncode", "tail", "evidence", "message"),
    [
        (-9, f"{HOSTNAME}\n{HOSTNAME}", "", "not sent by the launcher: the kernel's out-of-memory killer, or somebody"),
        (-11, f"{HOSTNAME}\nFatal Python error: x\n{DESTROY}", "Fatal Python error: x", "ended by the signal"),
        (-9, REFUSED, REFUSED, "not sent by the launcher: the kernel's out-of-memory killer, or somebody"),
        (3, f"no data\n{HOSTNAME}", "no data", "no data"),
        (3, HOSTNAME, "", "no message on stderr"),
    ],
)
def test_harmless_warnings_are_no_evidence(returncode, tail, evidence, message):
    ranks = RankFailures("algo-1")
    ranks.begin({0: 0})
    failure = ranks.exited(0.0, 0, returncode, tail)
    assert (failure.traceback, failure.message) == (evidence, message)


def others(*failures: Failure, of: Failure = ROOT) -> str:
    return with_others(of, [(float(at), each) for at, each in enumerate([of, *failures])]).others


def test_what_else_failed_is_one_short_line_each_causes_first():
    reader = Failure("exit", "algo-1", 7, "no message " + "x" * 500, rank=0)
    lines = others(PEER, reader, LOST).splitlines()
    assert lines[0].startswith("also: exit: rank 0 on algo-1, exit 7, attempt 1: no message xxx")
    assert len(lines[0]) <= 200
    assert lines[1] == f"also: {LOST.headline()}"
    assert lines[2] == f"then: {PEER.headline()}"


def test_ranks_that_failed_the_same_way_are_counted():
    alike = [Failure("exception", "algo-2", 1, ROOT.message, rank=rank) for rank in range(4, 104)]
    assert others(*alike) == "also: the same on 100 more: rank 4, 5, 6, 7, 8, 9, 10, 11, .."
    assert others(*alike[:8]) == "also: the same on 8 more: rank 4, 5, 6, 7, 8, 9, 10, 11"
    different = [Failure("exit", "algo-2", 3, f"word {rank}", rank=rank) for rank in range(100, 200)]
    lines = others(*different).splitlines()
    assert len(lines) == 9
    assert lines[-1] == "then: 92 more"


def test_hosts_are_named_up_to_a_number_and_the_others_counted():
    hosts = [f"algo-{number}" for number in range(SHOWN_HOSTS + 2)]
    assert listed(hosts[:SHOWN_HOSTS]) == ", ".join(hosts[:SHOWN_HOSTS])
    assert listed(hosts) == f"{', '.join(hosts[:SHOWN_HOSTS])} and 2 more"


def test_consequences_are_named_in_full_only_and_causes_where_room_is_left():
    full = Failure("exception", "a", 1, "E: x", rank=0, traceback="\n".join(map(str, range(999))), hint="look there")
    told = with_others(full, [(0.0, full), (1.0, PEER), (2.0, LOST)])
    assert "also:" not in told.text()
    short = with_others(ROOT, [(0.0, ROOT), (1.0, PEER), (2.0, LOST)])
    assert short.text().splitlines()[-1] == f"also: {LOST.headline()}"
    assert PEER.headline() not in short.text()
    assert f"then: {PEER.headline()}" in full_text(short)


def test_what_the_script_said_opens_the_text_and_ours_follows():
    told = Failure(
        "exit", "a", 255, "no message", rank=0, user_text="Exception during training: no data", hint="look there"
    )
    assert told.text() == (
        "Exception during training: no data\nexit: rank 0 on a, exit 255, attempt 1: no message\nhint: look there"
    )
    long = Failure("exit", "a", 255, "no message", rank=0, user_text="y" * 4000)
    assert long.text() == "y" * SHOWN
    nearly = Failure("exit", "a", 255, "no message", rank=0, user_text="y" * (SHOWN - 11))
    assert nearly.text() == "y" * (SHOWN - 11) + "\nexit: rank"


def test_the_word_of_the_roots_host_is_taken_else_the_first_one():
    mine = Failure("exit", "algo-2", 1, "later", rank=2, user_text="of algo-2")
    first = Failure("exit", "algo-1", 1, "first", rank=0, user_text="of algo-1")
    assert with_others(ROOT, [(0.0, ROOT), (1.0, first), (2.0, mine)]).user_text == "of algo-2"
    assert with_others(ROOT, [(0.0, ROOT), (1.0, first), (2.0, PEER)]).user_text == "of algo-1"
    assert with_others(LOST, [(0.0, LOST)]).user_text == ""


def test_hosts_that_say_the_same_are_one_line():
    said = [(0.0, Failure("configuration", f"algo-{n}", 64, "option --lr: 'x'")) for n in (1, 2, 3)]
    assert with_others(said[0][1], said).others == "also: the same on 2 more: algo-2, algo-3"
