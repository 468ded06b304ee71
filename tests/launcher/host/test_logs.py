"""Output of the ranks: lines stay whole however the bytes arrive."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.host.output.logs import LONGEST_LINE, Console, Lines, RankLog, harmless, prefixed
from algorun.host.output.tail import Tail
from tests.ci_commands import COMMANDS as CI_COMMANDS
from tests.ci_commands import NONE, TEXTS, is_command

CHUNK = st.one_of(
    st.binary(max_size=12), st.lists(st.sampled_from((b"a", b" ", b"\r", b"\n", b"\b")), max_size=9).map(b"".join)
)


def without_redraws(text: bytes) -> bytes:
    """The lines of a text, byte by byte: those that are drawn anew end there, and an empty one of them is none."""
    done, line = b"", b""
    for part in re.findall(rb"\r*\n|\r|[^\r\n]+", re.sub(rb"\x08{2,}", b"\n", text)):
        if part == b"\r" and not line.strip(b" "):
            line = b""
        elif part.endswith((b"\r", b"\n")):
            done, line = done + line + b"\n", b""
        else:
            line = part
    return done + line


@given(st.lists(CHUNK, max_size=30))
def test_chunks_do_not_change_the_lines(chunks):
    lines = Lines()
    got = b"".join(lines.feed(chunk) for chunk in chunks) + lines.end()
    whole = b"".join(chunks).rstrip(b"\r\b")
    assert got.rstrip(b"\n\b\r ") == without_redraws(whole).rstrip(b"\n\b\r ")
    assert not got or got.endswith(b"\n")


@given(st.lists(st.binary(max_size=12), max_size=30))
def test_only_whole_lines_come_out_before_the_end(chunks):
    lines = Lines()
    for chunk in chunks:
        out = lines.feed(chunk)
        assert out == b"" or out.endswith(b"\n")


@pytest.mark.parametrize("cut", range(1, 24))
def test_a_bar_of_backspaces_ends_its_lines_wherever_it_is_cut(cut):
    lines, text = Lines(), b"10%\b\b\b20%\b\b\b30%\na\bb c\n"
    assert lines.feed(text[:cut]) + lines.feed(text[cut:]) + lines.end() == b"10%\n20%\n30%\na\bb c\n"


def test_a_line_that_rests_is_shown_and_comes_whole_at_its_end(tmp_path, capfd):
    console = Console()
    log = RankLog("0 algo-1", "rank-00000.log", tmp_path, console)
    log.feed(1, b"loading ")
    log.show_unfinished(0.0)
    log.feed(1, b"the tokenizer ..\x1b[2K ")
    log.show_unfinished(0.9)
    log.show_unfinished(1.8)  # it has rested for 0.9 s
    log.show_unfinished(2.0)
    log.show_unfinished(3.0)
    log.feed(1, b"more ")
    for now in (4.0, 5.0, 6.0, 11.9, 13.0, 14.0):
        log.show_unfinished(now)
    log.feed(1, b"done\n" + b"x" * 5000)
    for now in (15.0, 30.0, 40.0):
        log.show_unfinished(now)
    log.feed(1, b"")
    console.close()
    whole = "[0 algo-1] loading the tokenizer .. more done\n"
    assert capfd.readouterr().out == (
        "[0 algo-1] loading the tokenizer .. \n"
        "[0 algo-1] loading the tokenizer .. more \n" + whole + f"[0 algo-1] {'x' * 1000}\n[0 algo-1] {'x' * 5000}\n"
    )
    assert b"\n" not in (tmp_path / "rank-00000.log").read_bytes()[:-5001].rstrip(b"\n")


def test_a_line_without_end_is_broken_before_it_fills_memory():
    lines = Lines()
    out = b"".join(lines.feed(b"x" * 1000) for _ in range(200))
    assert out.count(b"\n") >= 2
    assert max(map(len, out.split(b"\n"))) <= LONGEST_LINE + 1000


@given(st.text(alphabet="aé漢🙂", min_size=1, max_size=9), st.integers(1000, LONGEST_LINE + 10))
def test_a_long_line_is_broken_between_two_characters(text, size):
    body = text.encode()
    body *= 4 * LONGEST_LINE // len(body)
    lines = Lines()
    chunks = [lines.feed(body[at : at + size]) for at in range(0, len(body), size)]
    out = (*chunks, lines.end())
    assert b"".join(out).replace(b"\n", b"") == body
    for chunk in out:
        chunk.decode()


@pytest.mark.parametrize("character", ["é", "漢", "🙂"])
@pytest.mark.parametrize("shift", range(4))
def test_the_log_the_file_and_the_tail_have_no_torn_character(character, shift, tmp_path, capfd):
    body = (b"x" * shift) + character.encode() * (3 * LONGEST_LINE)
    console = Console()
    log = RankLog("0 a", "rank.log", tmp_path, console)
    for at in range(0, len(body), LONGEST_LINE + 1):
        log.feed(2, body[at : at + LONGEST_LINE + 1])
    log.feed(2, b"")
    log.close()
    console.close()
    err = capfd.readouterr().err
    assert "\ufffd" not in err
    assert err.count(character) == 3 * LONGEST_LINE
    assert (tmp_path / "rank.log").read_bytes().replace(b"\n", b"") == body
    assert "\ufffd" not in log.tail
    assert log.tail.count(character) == 3 * LONGEST_LINE


@pytest.mark.parametrize("byte", [b"\x80", b"\xbf", b"\xc0", b"\xe2", b"\xf0", b"\xf5", b"\xff"])
def test_bytes_that_are_no_text_flow_all_the_same(byte):
    lines = Lines()
    body = byte * (4 * LONGEST_LINE)
    out = [lines.feed(body[at : at + 1000]) for at in range(0, len(body), 1000)]
    assert max(map(len, out)) <= LONGEST_LINE + 1000
    assert (b"".join(out) + lines.end()).replace(b"\n", b"") == body


def test_every_line_gets_its_prefix():
    assert prefixed(b"[0 a] ", b"one\n\ntwo\n") == b"[0 a] one\n[0 a] \n[0 a] two\n"
    assert prefixed(b"[0 a] ", b"") == b""


def test_a_rank_log_keeps_a_file_and_the_end_of_stderr(tmp_path):
    reader, writer = os.pipe()
    console = Console()
    log = RankLog("3 algo-2", "rank-00003.log", tmp_path, console)
    log.feed(1, b"out\n")
    for number in range(100):
        log.feed(2, b"line %d\n" % number)
    log.close()
    console.close()
    os.close(writer)
    os.close(reader)
    assert (tmp_path / "rank-00003.log").read_bytes().startswith(b"out\nline 0\n")
    assert log.tail.splitlines()[-1] == "line 99"
    assert len(log.tail.splitlines()) == 40


def test_a_log_folder_that_cannot_be_made_is_a_warning(tmp_path, capfd):
    (tmp_path / "file").write_text("")
    console = Console()
    log = RankLog("0 a", "rank.log", tmp_path / "file" / "logs", console)
    log.feed(1, b"still shown\n")
    console.close()
    out = capfd.readouterr().out
    assert "warning: no log file" in out
    assert "[0 a] still shown" in out


def dump(threads: int) -> bytes:
    """What faulthandler writes at the end of a process."""
    thread = b"Thread 0x00007f7960c3e6c0 (most recent call first):\n" + b'  File "threading.py", line 324 in wait\n' * 9
    return (
        b"Fatal Python error: Aborted\n\n"
        + b"\n".join([thread] * threads)
        + b"\nExtension modules: torch._C (total: 1)\n"
    )


@pytest.mark.parametrize("size", [7, 10_000])
def test_stacks_of_many_threads_leave_the_words_before_them(size):
    tail, text = Tail(), b"noise\n" * 60 + b"the watchdog's last words\n" + dump(30) + b"Aborted (core dumped)\n"
    lines = Lines()
    for at in range(0, len(text), size):
        if whole := lines.feed(text[at : at + size]):
            tail.add(whole)
    told = tail.text.splitlines()
    assert told[11] == "the watchdog's last words"
    assert told[-2:] == ["Extension modules: torch._C (total: 1)", "Aborted (core dumped)"]
    assert len(told) <= 52


def test_a_dump_of_a_child_that_the_program_survives_is_forgotten():
    tail = Tail()
    tail.add(b"a worker has failed\n" + dump(30))
    tail.add(b"step\n" * 20)
    assert "a worker has failed" in tail.text
    for _ in range(3):
        tail.add(b"step\n" * 20)
    assert tail.text == "\n".join(["step"] * 40)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"plain \xc3\xa9\t|", b"plain \xc3\xa9\t|"),
        (b"\x1b[1;31mred\x1b[0m", b"\x1b[1;31mred\x1b[0m"),
        (b"\x1b[31mred until the end", b"\x1b[31mred until the end\x1b[0m"),
        (b"up \x1b[1A\x1b[2K\x1b[1Gok nnodes=1 world_size=2", b"up ok nnodes=1 world_size=2"),
        (b"title \x1b]0;owned\x07\x07 bell \x1bc reset \x08\x0b\x0c", b"title  bell  reset "),
        (
            b"\xc2\x9b1A\xc2\x9b2Kok \xc2\x9b31mred\xc2\x85\xc2\x90q\xc2\x9c\xc2\xa0\xc3\xa9",
            b"ok \x1b[31mred\xc2\xa0\xc3\xa9\x1b[0m",
        ),
        (b"title \xc2\x9d0;owned\xc2\x9cshown", b"title shown"),
        (b"cut \x1b[12", b"cut "),
        (b"cut \x1b]0;no end", b"cut "),
    ],
)
def test_the_console_gets_colours_of_a_rank_and_nothing_that_moves_its_cursor(line, shown):
    assert harmless(line + b"\n") == shown + b"\n"


COMMANDS = st.lists(st.sampled_from((b"\xc2", b"\x9b", b"\x1b", b"[", b"m", b"A", b"\x07", b" ")), max_size=12).map(
    b"".join
)
LINE = st.one_of(st.binary(max_size=20).filter(lambda each: b"\n" not in each), COMMANDS)


@given(st.lists(LINE, min_size=1, max_size=6))
def test_no_line_of_a_rank_writes_over_its_own_prefix(lines):
    text = prefixed(b"[0 algo-1] ", harmless(b"\n".join(lines) + b"\n"))
    assert text.count(b"\n") <= len(lines)
    for line in text.split(b"\n")[:-1]:
        assert line.startswith(b"[0 algo-1] ")
        assert not set(line) & set(b"\r\x07\x08\x0b\x0c\x7f")
        assert not re.search(rb"\xc2[\x80-\x9f]", line)
        assert all(part[:1] == b"[" and part.lstrip(b"[0123456789;:")[:1] == b"m" for part in line.split(b"\x1b")[1:])


@given(TEXTS)
def test_no_line_of_a_rank_is_a_command_to_a_ci_system(text):
    for line in prefixed(b"[0 algo-1] ", harmless(text.encode() + b"\n")).decode("utf-8", "replace").split("\n"):
        assert not is_command(line)


def test_a_line_with_a_command_keeps_its_words_and_another_line_is_unchanged():
    for line in CI_COMMANDS:
        assert harmless(f"{line}\n".encode()).decode() in (f"{line}\n", re.sub("##(?=[a-z]*\\[)", "## ", line) + "\n")
    for line in NONE:
        assert harmless(f"{line}\n".encode()).decode() == f"{line}\n"


def test_the_end_of_both_streams_is_kept_beside_that_of_stderr(tmp_path):
    log = RankLog("0 a", "rank.log", tmp_path, Console())
    log.aside = True
    log.feed(1, b"one\n")
    log.feed(2, b"two\n")
    log.feed(1, b"".join(b"%d\n" % number for number in range(100)))
    assert log.tail == "two"
    assert log.printed.split("\n") == [str(number) for number in range(60, 100)]
    log.close()
