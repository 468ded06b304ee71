"""Which processes cannot answer, by what the kernel says of them."""

from __future__ import annotations

import pytest

from algorun.host.ranks import stacks

EXITING = 0x4  # PF_EXITING among the flags of /proc/PID/stat


@pytest.mark.parametrize(
    ("state", "flags", "dumping", "frozen"),
    [
        ("S (sleeping)", 0, 0, False),
        ("T (stopped)", 0, 0, True),
        ("t (tracing stop)", 0, 0, True),
        ("D (disk sleep)", 0x400000, 0, True),
        ("D (disk sleep)", 0, 1, False),  # a rank that was aborted, whose memory is still written to a core file
        ("D (disk sleep)", 0x400000 | EXITING, 0, False),  # it has ended, and the driver takes its GPU's memory back
        ("Z (zombie)", EXITING, 0, False),
    ],
)
def test_a_process_that_ends_is_not_held_up(state, flags, dumping, frozen, tmp_path, monkeypatch):
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "status").write_text(f"Name:\tpython\nState:\t{state}\nCoreDumping:\t{dumping}\nThreads:\t9\n")
    (folder / "stat").write_text(f"7 (a (name) b) {state[0]} 1 7 7 0 -1 {flags} 200 0 0 0 3 0 0 0 20 0 9 0 1370561\n")
    monkeypatch.setattr(stacks, "PROC", str(tmp_path))
    assert stacks.frozen(7) is frozen


def test_a_process_that_is_gone_is_not_frozen(tmp_path, monkeypatch):
    monkeypatch.setattr(stacks, "PROC", str(tmp_path))
    assert not stacks.frozen(7)


def test_files_that_no_process_of_ours_has_made_are_no_processes(tmp_path):
    for name in ("stack-7", "stack-x", "stack-", f"stack-{'9' * 200}", "stack-7.old"):
        (tmp_path / name).touch()
    assert stacks.askable(str(tmp_path)) == [7]


def test_a_line_number_of_thousands_of_digits_is_no_frame():
    text = f'Current thread 0x1 (most recent call first):\n  File "a.py", line {"9" * 5000} in f\n  File "b.py", line 3 in g\n'
    assert [frame.where for frame in stacks.frames(text)] == ["b.py:3"]
