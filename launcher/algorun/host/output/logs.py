"""What the ranks print: whole lines, each with its rank and host before it, on the console and in a file per rank."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from algorun.common.plain_text import ANYWHERE, plain
from algorun.common.standard_streams import StandardStream, write_all

from .tail import Tail

LONGEST_LINE = 64 * 1024  # bytes; a longer one is broken (between two characters), as it could fill the memory
REDRAW = re.compile(rb"\x08{2,}")
# A line of nothing but spaces that a carriage return ends: the beginning of a bar, or its end, that wipes it out.
WIPED = re.compile(rb"(?:^|(?<=\r)) *\r", re.MULTILINE)
BACKLOG = 4 * 1024 * 1024  # bytes waiting for a slow console before the ranks have to wait
PATIENCE_S = 60.0  # after the job's end, for a reader that takes nothing: people page through a log


RESTED_S = 1.0  # an unfinished line that has not grown for so long is shown
SHOWN_AGAIN_S = 10.0  # and once more, if it has grown meanwhile
LONGEST_SHOWN = 1000  # bytes of it


class Lines:
    """Cuts a stream into whole lines. A carriage return ends a line too, and so do several backspaces: progress bars redraw with
    them. A line of more than `longest` bytes is broken. Pure."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._rest = b""
        self.broken = False  # True while the last newline that came out is not the program's, but breaks a long line

    @property
    def unfinished(self) -> bytes:
        """The line that has begun."""
        return self._rest.rstrip(b"\r\b")

    def feed(self, data: bytes) -> bytes:
        """The whole lines that are complete now, each ended by a newline; b"" if none is."""
        text = self._rest + data
        if b"\r" in text or b"\b\b" in text:
            body = text.rstrip(b"\r\b")  # there may come more of them, or the second half of a \r\n
            text = self._with_newlines(body) + text[len(body) :]
        end = text.rfind(b"\n") + 1
        if len(text) - end > self._longest:
            cut = len(text) - _begun(text)
            whole, self._rest, self.broken = text[:cut] + b"\n", text[cut:], True
        else:
            whole, self._rest = text[:end], text[end:]
            self.broken = self.broken and not whole
        return whole

    def _with_newlines(self, text: bytes) -> bytes:
        """Newlines where a bar is drawn anew. A bar that begins with a carriage return, or is wiped out, leaves no empty line."""
        text = re.sub(rb"\r+\n", b"\n", REDRAW.sub(b"\n", text))
        text = WIPED.sub(lambda found: b"\r" if self.broken and not found.start() else b"", text)
        return re.sub(rb"\r+", b"\n", text)

    def end(self) -> bytes:
        """What is left when the stream ends, as a line."""
        rest, self._rest, self.broken = self._rest, b"", False
        if rest.endswith(b"\r"):
            rest = rest.rstrip(b"\r").rstrip(b" ") and rest.rstrip(b"\r")
        return rest + b"\n" if rest else b""


def _begun(text: bytes) -> int:
    """How many bytes at the end of `text` begin a character of UTF-8 whose other bytes are missing."""
    for size in range(1, min(3, len(text)) + 1):
        lead = text[-size]
        if lead & 0xC0 != 0x80:  # a byte that begins a character
            return size if 0xC2 <= lead <= 0xF4 and size < 2 + (lead >= 0xE0) + (lead >= 0xF0) else 0
    return 0


def prefixed(prefix: bytes, lines: bytes) -> bytes:
    """`prefix` before each line; `lines` ends with a newline."""
    return prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n" if lines else b""


class Console:
    """Writes to the launcher's stdout and stderr in a thread, so that a slow reader does not stop the heartbeats."""

    def __init__(self) -> None:
        self._queue: deque[tuple[int, bytes]] = deque()
        self._waiting = 0  # bytes that are not written yet
        self._left = 0  # those of the lines that are written now
        self._ready = threading.Condition()
        self._closing = False
        self._streams = {fd: StandardStream(fd) for fd in (1, 2)}
        self._written = 1  # the stream that is written now, or was last
        self._thread: threading.Thread | None = None

    @property
    def full(self) -> bool:
        """True while ranks should not be read."""
        return self._waiting > BACKLOG

    def put(self, fd: int, data: bytes) -> None:
        """Whole lines for `fd` (1 or 2)."""
        if not data:
            return
        with self._ready:
            if self._has_thread():
                self._queue.append((fd, data))
                self._waiting += len(data)
                self._ready.notify()
                return
        self._streams[fd].write(data, lambda _: None)  # a slow reader is better than none

    def _has_thread(self) -> bool:
        """Starts the thread. False where this host allows no further one."""
        if self._thread is None:
            thread = threading.Thread(target=self._write, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        return True

    def say(self, text: str, fd: int = 1) -> None:
        """Lines of the launcher's own, which may quote a program."""
        self.put(fd, plain(text).encode("utf-8", "replace") + b"\n")

    def close(self, patience_s: float | None = PATIENCE_S) -> None:
        """Waits until everything is written. Gives up, and says so, once a reader takes nothing for `patience_s`; None: never."""
        with self._ready:
            self._closing = True
            self._ready.notify()
        while self._thread is not None and self._thread.is_alive():
            before = self._waiting
            self._thread.join(patience_s)
            if self._thread.is_alive() and self._waiting == before:
                lost = f"nobody has read it for {patience_s:g} s; its last {before} bytes are lost here, not in the log files"
                self._streams[self._written].warn(lost)
                return

    def _write(self) -> None:
        while True:
            with self._ready:
                while not self._queue:
                    if self._closing:
                        return
                    self._ready.wait()
                self._written, data = self._queue.popleft()
                self._left = len(data)
            self._streams[self._written].write(data, self._took)
            self._took(self._left)  # what a broken stream drops

    def _took(self, size: int) -> None:
        with self._ready:
            self._left -= size
            self._waiting -= size


# Secrets in addresses that pip prints from requirements.txt: user and password before the host, keys of signed URLs.
SECRET = re.compile(
    rb"(?<=://)[^\s/@]+(?=@)|(?<=[?&])((?:[\w.-]*(?:signature|credential|token|password|secret)|sig)=)[^\s&'\")]+", re.I
)


def without_secrets(lines: bytes) -> bytes:
    """`***` in place of passwords and signatures in addresses."""
    return SECRET.sub(lambda found: (found[1] or b"") + b"***", lines)


# Characters that move a terminal's cursor or ring its bell, and ESC, with which commands begin.
MOVING = bytes(number for number in range(32) if number not in b"\t\n") + b"\x7f"
# All commands of a terminal but colours; a command without its end goes to the end of its line.
COMMAND = (
    rb"\x1b\[[0-9;:]*m|\x1b\[[0-?]*[ -/]*[@-~]?|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?"
    rb"|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]"
)
# The same commands as one character each (U+0080 to U+009F) in UTF-8: U+009B is ESC [.
C1 = re.compile(rb"\xc2([\x80-\x9f])")
CI_COMMAND = re.compile(ANYWHERE.encode())
COLOUR, UNCOLOURED = rb"\x1b\[[0-9;:]*m", b"\x1b[0m"


def harmless(lines: bytes) -> bytes:
    """Whole lines of a rank as the console gets them: with colours, which end with their line, and without anything else that
    moves a terminal's cursor. So no line of a rank can write over a line of the launcher's, or over its own prefix. A line of
    nothing else than such commands is left out. What a CI system takes for a command wherever it stands in a line gets a
    space; what it takes for one at a line's start has the prefix before it."""
    if len(lines.translate(None, MOVING)) != len(lines) or C1.search(lines):
        lines = _without_moves(lines)
    return CI_COMMAND.sub(b"## ", lines) if b"##" in lines else lines


def _without_moves(lines: bytes) -> bytes:
    shown = ((line, _harmless_line(line)) for line in lines.removesuffix(b"\n").split(b"\n"))
    return b"".join(cleaned + b"\n" for line, cleaned in shown if cleaned.strip() or not line.strip())


def _harmless_line(line: bytes) -> bytes:
    line = C1.sub(lambda found: b"\x1b" + bytes([found[1][0] - 0x40]), line)
    cleaned = re.sub(COMMAND, lambda found: found[0] if re.fullmatch(COLOUR, found[0]) else b"", line)
    cleaned = C1.sub(b"?", cleaned)  # whose two bytes met when what stood between them was left out
    return cleaned + UNCOLOURED if b"\x1b" in cleaned and not cleaned.endswith(UNCOLOURED) else cleaned


class RankLog:
    """The output of one process: both of its streams, its file, and the last lines for a failure report.

    `clean` changes whole lines before anybody sees them. `shows_progress` says whether one of them counts as progress.
    """

    def __init__(
        self,
        label: str,
        file_name: str,
        folder: Path,
        console: Console,
        clean: Callable[[bytes], bytes] = bytes,
        shows_progress: Callable[[bytes], bool] | None = None,
    ) -> None:
        self._clean, self._shows_progress = clean, shows_progress
        self._prefix = f"[{label}] ".encode()
        self._console = console
        self._streams = {1: Lines(), 2: Lines()}
        self._begun: dict[int, tuple[bytes, float]] = {}  # an unfinished line, by its stream, and since when it rests
        self._shown: dict[int, tuple[bytes, float]] = {}  # what of it was shown last, and when
        self._broken = 0  # the stream whose long line the file's last line is the beginning of, or 0
        self._tail, self._printed = Tail(), Tail()
        self._label = label
        self.aside = False  # True: its lines go into the file only
        self.fed_at = time.monotonic()
        self.matched_at = 0.0  # when a line last showed progress, to the second
        self._file: int | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(folder / file_name, flags, 0o644)
        except OSError as error:
            console.say(f"algorun: warning: no log file {file_name} in {folder}: {error.strerror}")

    def feed(self, stream: int, data: bytes) -> None:
        """Bytes from the rank's stdout (1) or stderr (2); b"" at its end."""
        self.fed_at = time.monotonic()
        lines = self._streams[stream].feed(data) if data else self._streams[stream].end()
        if not lines:
            return
        lines = self._clean(lines)
        if self._shows_progress is not None and self.fed_at - self.matched_at > 1.0 and self._shows_progress(lines):
            self.matched_at = self.fed_at
        shown, at = self._shown.get(stream, (b"", 0.0))
        self._shown[stream] = b"", at
        if not self.aside:
            new = lines[len(shown) :] if shown and lines.startswith(shown) else lines
            self._console.put(stream, prefixed(self._prefix, harmless(new)))
        if stream == 2:
            self._tail.add(lines)
        self._printed.add(lines)
        if self._file is not None:
            try:
                write_all(self._file, self._for_file(stream, lines))
            except OSError as error:
                self._console.say(f"algorun: warning: log file of [{self._label}]: {error.strerror}; it ends here")
                self.close()

    def _for_file(self, stream: int, lines: bytes) -> bytes:
        """The lines as the file gets them: a long line whole, unless the other stream has a line meanwhile."""
        begin = b"\n" if self._broken not in (0, stream) else b""
        self._broken = stream if self._streams[stream].broken else 0
        return begin + (lines.removesuffix(b"\n") if self._broken else lines)

    def show_unfinished(self, now: float) -> None:
        """Shows a line that rests without its end, such as a question, or what a program waits for. Call it every second.

        The whole line follows if it has grown at its end: whoever searches the log for a metric finds it in one piece.
        """
        for stream, lines in self._streams.items():
            text = lines.unfinished[-LONGEST_SHOWN:]
            begun, since = self._begun.get(stream, (b"", now))
            if text != begun:
                self._begun[stream] = text, now
                continue
            line = self._clean(text + b"\n")
            shown, at = self._shown.get(stream, (b"", -SHOWN_AGAIN_S))
            if text.strip() and line != shown and now - since >= RESTED_S and now - at >= SHOWN_AGAIN_S:
                self._shown[stream] = line, now
                if not self.aside:
                    self._console.put(stream, prefixed(self._prefix, harmless(line)))

    @property
    def tail(self) -> str:
        """The last lines of stderr."""
        return self._with_unfinished(self._tail, (2,))

    @property
    def printed(self) -> str:
        """The last lines of both streams, in the order in which they came."""
        return self._with_unfinished(self._printed, (1, 2))

    def _with_unfinished(self, tail: Tail, streams: tuple[int, ...]) -> str:
        """Adds last words without a newline. Their stream has not ended where a child of the program holds it open."""
        begun = (self._streams[stream].unfinished for stream in streams)
        text = b"".join(self._clean(line + b"\n") for line in begun if line.strip())
        return "\n".join(filter(None, (tail.text, text.decode("utf-8", "replace").removesuffix("\n"))))

    def close(self) -> None:
        """Closes the file, whose last line ends: another attempt may go on in it."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.write(self._file, b"\n" * bool(self._broken))
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None
