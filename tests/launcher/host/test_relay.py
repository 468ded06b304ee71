"""From a rank's file descriptors to the console and the log file: real processes, pipes and files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from algorun.common.event_loop import Loop
from algorun.host.output.logs import Console, RankLog
from algorun.host.output.pipes import Pipes


@pytest.fixture
def relay(tmp_path):
    """Runs a program as a rank's is run: returns its log as it is when the program has ended, then ends the relay."""
    loop, console = Loop(), Console()
    log, pipes = RankLog("0 algo-1", "rank.log", tmp_path, console), Pipes(loop, console)

    def run(program: str) -> RankLog:
        ends = [pipes.into(log, stream) for stream in (1, 2)]
        argv = [sys.executable, "-I", "-u", "-c", textwrap.dedent(program)]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=ends[0], stderr=ends[1])
        for end in ends:
            os.close(end)
        loop.in_thread(process.wait, lambda _: loop.stop())
        loop.run()
        pipes.drain()
        return log

    def end() -> None:
        pipes.close()
        log.close()
        console.close()
        loop.close()

    run.end = end
    return run


def test_last_words_without_a_newline_are_known_while_a_child_holds_the_pipe(relay):
    """Neither is the end of the pipe waited for, nor the end of the line."""
    log = relay(
        """
        import os, subprocess, sys
        print(subprocess.Popen(["sleep", "60"]).pid)
        sys.stdout.write("1 of 2 files")
        sys.stderr.write("loading\\nfatal: no licence")
        os._exit(3)
        """
    )
    child, *printed = log.printed.split("\n")
    os.kill(int(child), signal.SIGKILL)
    assert log.tail == "loading\nfatal: no licence"
    assert printed == ["loading", "1 of 2 files", "fatal: no licence"]
    relay.end()
    assert log.tail == "loading\nfatal: no licence"


def test_nested_bars_leave_no_empty_lines(relay, capfd, tmp_path):
    """The bytes of tqdm: two bars, a message between them, and an inner bar that is wiped out."""
    relay(
        r"""
        import sys
        draw = sys.stderr.write
        draw("\router:  0%")
        for percent in (0, 50, 100):
            draw(f"\n\rinner: {percent}%\x1b[A")
        draw("\n\r           \r\x1b[A")
        draw("\r          \repoch 1\n\router: 50%\r")
        draw("\n\nafter an empty line\n\r\x1b[2K\rlast\r\r\n")
        """
    )
    relay.end()
    lines = [
        "outer:  0%",
        "inner: 0%",
        "inner: 50%",
        "inner: 100%",
        "epoch 1",
        "outer: 50%",
        "",
        "after an empty line",
        "last",
    ]
    assert capfd.readouterr().err == "".join(f"[0 algo-1] {line}\n" for line in lines)
    assert b"\n\n" not in (tmp_path / "rank.log").read_bytes().replace(b"\n\nafter", b"")


def test_a_state_of_a_bar_that_rests_is_shown_once(tmp_path, capfd):
    """A bar that moves every half minute is shown after a second, and not again when it moves."""
    console = Console()
    log = RankLog("0 algo-1", "rank.log", tmp_path, console)
    for step in range(3):
        log.feed(2, b"\r%d/2" % step)
        for second in range(30):
            log.show_unfinished(step * 30 + second)
    log.feed(2, b"\n2/2\n")
    log.close()
    console.close()
    assert capfd.readouterr().err == "[0 algo-1] 0/2\n[0 algo-1] 1/2\n[0 algo-1] 2/2\n[0 algo-1] 2/2\n"
    assert (tmp_path / "rank.log").read_text() == "0/2\n1/2\n2/2\n2/2\n"


def test_windows_line_ends_leave_no_empty_lines(relay, tmp_path):
    relay("import os; [os.write(1, part) for part in (b'one\\r\\r', b'\\ntwo\\r', b'\\n\\r\\nthree\\r\\r\\n')]")
    relay.end()
    assert (tmp_path / "rank.log").read_bytes() == b"one\ntwo\n\nthree\n"


@pytest.mark.parametrize("size", [65_535, 65_536, 66_000, 1_000_000])
def test_a_long_line_of_json_is_whole_in_the_file(size, relay, tmp_path, capfd):
    relay(f"import json; print(json.dumps({{'text': 'é' * {size // 6}, 'loss': 0.5}})); print('next')")
    relay.end()
    record, after = (tmp_path / "rank.log").read_text().splitlines()
    assert json.loads(record)["loss"] == 0.5
    assert after == "next"
    out = capfd.readouterr().out.splitlines()
    assert all(line.startswith("[0 algo-1] ") for line in out)
    assert "".join(line.removeprefix("[0 algo-1] ") for line in out) == record + "next"


def test_a_line_of_the_other_stream_never_lands_inside_a_long_line(tmp_path):
    console = Console()
    log = RankLog("0 algo-1", "rank.log", tmp_path, console)
    log.aside = True
    log.feed(1, b"x" * 100_000)
    log.feed(2, b"warning\n")
    log.feed(1, b"y\nz\n" + b"w" * 100_000)
    log.close()
    assert (tmp_path / "rank.log").read_bytes() == b"x" * 100_000 + b"\nwarning\ny\nz\n" + b"w" * 100_000 + b"\n"


def test_a_file_that_is_copied_and_truncated_goes_on_at_its_beginning(tmp_path):
    log = RankLog("0 algo-1", "rank.log", tmp_path, Console())
    log.aside = True
    log.feed(1, b"before\n")
    os.truncate(tmp_path / "rank.log", 0)
    log.feed(1, b"after\n")
    log.close()
    assert (tmp_path / "rank.log").read_bytes() == b"after\n"


def alone(program: str, **options) -> subprocess.CompletedProcess[str]:
    """A process of its own that writes with the launcher's classes."""
    argv = [sys.executable, "-I", "-c", textwrap.dedent(program)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, **options)


def test_a_log_file_that_gets_only_part_of_a_line_says_so(tmp_path):
    """The kernel writes what there is room for, and reports that as success: only the next write fails."""
    done = alone(
        f"""
        import pathlib, resource
        from algorun.host.output.logs import Console, RankLog
        console = Console()
        log = RankLog("0 algo-1", "rank.log", pathlib.Path({str(tmp_path)!r}), console)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        log.feed(1, b"x" * 1500 + b"\\n")
        console.close()
        """
    )
    assert (tmp_path / "rank.log").stat().st_size == 1000
    assert done.stdout.splitlines()[1] == "algorun: warning: log file of [0 algo-1]: File too large; it ends here"


SAYS_MUCH = """
import sys
from algorun.host.output.logs import Console
console = Console()
for number in range(1000):
    console.put(1, b"%d\\n" % number + b"x" * 1000 + b"\\n")
console.close(float(sys.argv[1]))
"""


def talkative(patience_s: float) -> subprocess.Popen[str]:
    argv = [sys.executable, "-I", "-c", SAYS_MUCH, str(patience_s)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_slow_reader_gets_every_line():
    """It takes longer for all of it than it may take for a part."""
    slow = "import os, time\nwhile part := os.read(0, 65536): time.sleep(0.06); os.write(1, part)"
    says = talkative(0.8)
    got = subprocess.run(
        [sys.executable, "-c", slow], stdin=says.stdout, capture_output=True, text=True, timeout=60, check=True
    )
    assert got.stdout.splitlines()[::2] == [str(number) for number in range(1000)]
    assert says.communicate(timeout=60)[1] == ""


def test_lines_that_nobody_has_read_are_a_warning():
    says = talkative(0.3)
    assert says.wait(60) == 0
    _, err = says.communicate()
    assert err.startswith("algorun: warning: stdout: nobody has read it for 0.3 s; its last ")
    assert err.endswith(" bytes are lost here, not in the log files\n")
