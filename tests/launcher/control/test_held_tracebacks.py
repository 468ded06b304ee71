"""Which tracebacks a terminal is shown, and when."""

from __future__ import annotations

from algorun.control.failures.held_tracebacks import HELD_S, HeldTracebacks, count_text, split_by_cause

PEER = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:19855"


def printed(mark: str, words: str, prefix: str = "") -> bytes:
    """A traceback as a rank's lines."""
    lines = ("Traceback (most recent call last):", '  File "t.py", line 7, in <module>', "    step()", words)
    return "".join(f"[{mark}] {prefix}{line}\n" for line in lines).encode()


def test_a_traceback_is_held_and_all_other_lines_are_shown():
    held = HeldTracebacks()
    assert (
        held.take(2, b"[2 algo-2] warning\n" + printed("2 algo-2", "ValueError: x", "[rank2]: "), 0.0)
        == b"[2 algo-2] warning\n"
    )
    assert held.take(1, b"[2 algo-2] last words\n", 0.1) == b"[2 algo-2] last words\n"
    assert (
        held.take(2, b"[2 algo-2] more\nalgorun: warning\n[0 algo-1] 3%\n", 0.2) == b"algorun: warning\n[0 algo-1] 3%\n"
    )
    (only,) = held.rest()
    assert (only.rank, only.host, len(only.lines)) == (2, "algo-2", 5)
    assert only.text.splitlines()[0] == "[rank2]: Traceback (most recent call last):"
    assert held.rest() == []


def test_a_job_that_goes_on_shows_the_traceback_whole_soon():
    """A program may print an exception that it has handled, and a bar on stderr after it."""
    held = HeldTracebacks()
    lines = printed("0 algo-1", "KeyError: 'x'")
    assert held.take(2, lines, 10.0) == b""
    assert held.take(2, b"[0 algo-1] 10%|#\n", 10.0 + HELD_S - 0.1) == b""
    assert held.expired(10.0 + HELD_S - 0.1) == []
    (only,) = held.expired(10.0 + HELD_S)
    assert b"".join(only.lines) == lines + b"[0 algo-1] 10%|#\n"
    assert held.take(2, b"[0 algo-1] 20%|##\n", 10.0 + HELD_S) == b"[0 algo-1] 20%|##\n"


def test_what_the_cause_tells_already_is_named_and_what_it_does_not_tell_is_shown():
    held = HeldTracebacks()
    for mark, words in (("0 algo-1", PEER), ("1 algo-1", "ValueError: label 12"), ("2 algo-2", "ValueError: label 12")):
        held.take(2, printed(mark, words), 0.0)
    held.take(2, printed("3 algo-2", "KeyError: 'mine'"), 0.0)
    failure = "exception: rank 2 on algo-2, exit 1, attempt 1: ValueError: label 12 (at t.py:7)\nTraceback ..\n"
    failure += (
        "also: the same on 1 more: rank 1\nalso: exception: rank 3 on algo-2, exit 1, attempt 1: KeyError: 'mine'\n"
    )
    told, others = split_by_cause(held.rest(), ("algo-2", 2), failure)
    assert [(each.rank, each.lost_its_peer) for each in told] == [(0, True), (1, False)]
    assert [each.rank for each in others] == [3]


def test_the_ranks_are_counted_and_named_and_a_list_that_may_lack_some_says_so():
    failed = [("algo-10", 19), ("algo-2", 3), ("algo-2", 2)]
    text = "ranks failed with it (algo-2: 2, 3; algo-10: 19)"
    assert count_text(failed, other=True, complete=True) == f"3 other {text}"
    assert count_text(failed, other=False, complete=False) == f"at least 3 {text}"
    assert count_text(failed[:1], other=True, complete=True) == "1 other rank failed with it (algo-10: 19)"
    many = [(f"algo-{rank // 10 + 1}", rank) for rank in range(100)]
    assert count_text(many, other=False, complete=True).endswith("algo-8: 70, 71, 72, 73, 74, 75, 76, 77, ..; ..)")
