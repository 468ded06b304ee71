"""Output of the ranks: lines stay whole however the bytes arrive."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from launcher.logs import LONGEST_LINE, Console, Lines, RankLog, prefixed


@given(st.lists(st.binary(max_size=12), max_size=30))
def test_chunks_do_not_change_the_lines(chunks):
    lines = Lines()
    got = b"".join(lines.feed(chunk) for chunk in chunks) + lines.end()
    whole = b"".join(chunks).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert got.rstrip(b"\n") == whole.rstrip(b"\n")
    assert not got or got.endswith(b"\n")


@given(st.lists(st.binary(max_size=12), max_size=30))
def test_only_whole_lines_come_out_before_the_end(chunks):
    lines = Lines()
    for chunk in chunks:
        out = lines.feed(chunk)
        assert out == b"" or out.endswith(b"\n")


def test_a_line_without_end_is_broken_before_it_fills_memory():
    lines = Lines()
    out = b"".join(lines.feed(b"x" * 1000) for _ in range(200))
    assert out.count(b"\n") >= 2
    assert max(map(len, out.split(b"\n"))) <= LONGEST_LINE + 1000


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
