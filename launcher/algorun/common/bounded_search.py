r"""Searches lines for regular expressions that anybody may have written, in bounded time.

A single match of `(a+)+$` on a line of 200 characters takes longer than anybody waits, and no check of the expression finds all that
are slow. Python cannot end a match either: it holds the interpreter, and looks for signals only now and then (`.*x` on a long line:
never, up to Python 3.11). So the matching is done by a process of its own. It is killed once one expression has computed for longer
than its budget on a few lines; that expression is switched off, and a new process goes on with the others.
"""

from __future__ import annotations

import marshal
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import IO, Any

from .process_limit import cannot_start, is_limit

BUDGET_S = 2.0  # of computing, for one expression on one batch; a usual one takes a few milliseconds
PATIENCE = 10.0  # as many budgets may pass by the clock where other programs keep the machine busy
POLL_S = 0.02
MOST_LINES = 2000  # of a batch
MOST_CHARACTERS = 256 * 1024  # of a batch of several lines
DIED = "ended the process that searched for it"
SHOWN = 80  # characters of an expression in a message

# Such as `train_loss: ([0-9.]+)`: plain characters, one repetition of a class, plain characters or a choice of plain words.
PLAIN = r"(?:[\w :;,=%/@<>!'\"-]|\\[.\[\](){}|^$*+?/:-])"
WORDS = r"\(\?:\w+(?:\|\w+)*\)"
USUAL = re.compile(rf"({PLAIN}+)\((\[(?:[\w.,+-]|\\.)+\])\+\)((?:{PLAIN}|{WORDS})*)", re.ASCII)

Found = list[tuple[int, str]]  # number of a line, and its value


def compiled(regex: str) -> re.Pattern[str]:
    """The expression. Raises ValueError for whatever Python cannot compile."""
    try:
        return re.compile(regex)
    except (re.error, OverflowError, RecursionError, MemoryError) as error:
        why = "its parentheses are nested too deep" if isinstance(error, RecursionError) else str(error)
        raise ValueError(why) from None


def is_linear(regex: str) -> bool:
    """True for the usual expression, whose time grows with the line and no faster. Each try begins at the plain text, whose first
    character the class does not have; so what the class matches in one try is out of reach for every other one."""
    usual = USUAL.fullmatch(regex)
    return usual is not None and re.match(usual[2], usual[1].removeprefix("\\")) is None


class BoundedSearch:
    """Searches for `regexes`, which `compiled` has taken. Close it, or use it as a context.

    `on_slow(number, text)` is called once for each expression that is switched off, with its place in `regexes` and a sentence.
    Errors of `search`: UserError (69) where no process can start.
    """

    def __init__(self, regexes: Sequence[str], on_slow: Callable[[int, str], None], budget_s: float = BUDGET_S) -> None:
        self._regexes, self._on_slow, self._budget_s = list(regexes), on_slow, budget_s
        self._usual = {number: re.compile(regex) for number, regex in enumerate(regexes) if is_linear(regex)}
        self._searcher: _Searcher | None = None
        self._died: set[int] = set()  # the expressions in whose turn the process has ended once
        self.slow: set[int] = set()  # those that are switched off

    def search(self, lines: Sequence[str]) -> list[Found]:
        """For each expression the lines in which it is found, in their order, with its first group, or with all that it matches if
        it has no group. After an expression was switched off it finds nothing more."""
        found: list[Found] = [
            _found(self._usual[n], lines) if n in self._usual else [] for n in range(len(self._regexes))
        ]
        for begin, batch in _batches(lines):
            for number, values in self._batch(batch):
                found[number] += [(begin + line, text) for line, text in values]
        return found

    def _batch(self, lines: Sequence[str]) -> Iterator[tuple[int, Found]]:
        left = [number for number in range(len(self._regexes)) if number not in self.slow | self._usual.keys()]
        while left:
            searcher = self._searcher = self._searcher or _Searcher(self._regexes)
            fault = searcher.ask(left, lines)
            while left and not fault:
                answer = searcher.answer(self._budget_s)
                if isinstance(answer, str):
                    fault = answer
                else:
                    yield left.pop(0), answer
            if fault == DIED and left[0] not in self._died:  # perhaps somebody has ended it
                self._died.add(left[0])
                self.close()
            elif fault:
                self._switch_off(left.pop(0), fault)

    def _switch_off(self, number: int, fault: str) -> None:
        self.close()
        self.slow.add(number)
        regex = self._regexes[number]
        shown = regex if len(regex) <= SHOWN else f"{regex[:SHOWN]}.."
        self._on_slow(
            number,
            f"the regular expression {shown!r} {fault}: no further line is searched for it; fix: one without repetitions inside "
            "repetitions, such as loss=([0-9.]+)",
        )

    def close(self) -> None:
        """Ends the process."""
        if self._searcher is not None:
            self._searcher.close()
            self._searcher = None

    def __enter__(self) -> BoundedSearch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _found(pattern: re.Pattern[str], lines: Sequence[str]) -> Found:
    search, group = pattern.search, 1 if pattern.groups else 0
    matches = ((at, search(line)) for at, line in enumerate(lines))
    return [(at, match[group] or "") for at, match in matches if match]


def _batches(lines: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    """The lines in pieces, each with the number of its first line."""
    begin, size = 0, 0
    for number, line in enumerate(lines):
        if number > begin and (number - begin >= MOST_LINES or size + len(line) > MOST_CHARACTERS):
            yield begin, lines[begin:number]
            begin, size = number, 0
        size += len(line)
    if begin < len(lines):
        yield begin, lines[begin:]


class _Searcher:
    """The process that matches. It ends with its stdin."""

    def __init__(self, regexes: Sequence[str]) -> None:
        argv = [sys.executable, "-I", "-m", "algorun.common.bounded_search"]
        try:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/",
                start_new_session=True,  # Ctrl-C is for the program that asks
            )  # fmt: skip
            self._answers: queue.SimpleQueue[Found | None] = queue.SimpleQueue()
            threading.Thread(target=self._read, daemon=True).start()
        except (OSError, RuntimeError) as error:
            if not is_limit(error):
                raise
            raise cannot_start("the search for metrics") from None
        self._send(list(regexes))

    def _send(self, value: object) -> bool:
        assert self._process.stdin is not None
        try:
            _write(self._process.stdin, value)
        except OSError:
            return False
        return True

    def _read(self) -> None:
        assert self._process.stdout is not None
        while True:
            answer = _next(self._process.stdout)
            self._answers.put(answer)
            if answer is None:
                return

    def ask(self, numbers: Sequence[int], lines: Sequence[str]) -> str:
        """Asks for these expressions, one after the other. Returns "", or why that is impossible."""
        return "" if self._send((list(numbers), list(lines))) else DIED

    def answer(self, budget_s: float) -> Found | str:
        """What the next expression has found, or what is wrong with it."""
        begun, computed = time.monotonic(), _computed_s(self._process.pid)
        while True:
            try:
                found = self._answers.get(timeout=POLL_S)
            except queue.Empty:
                waited = time.monotonic() - begun
                if waited < budget_s:
                    continue
                now = _computed_s(self._process.pid)
                if now is None or computed is None or now - computed >= budget_s or waited >= PATIENCE * budget_s:
                    return f"takes more than {budget_s:g} s on a few lines"
            else:
                return DIED if found is None else found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:  # what was not written any more
                pass


def _computed_s(pid: int) -> float | None:
    """How long a process has computed, in seconds; None where the system does not say."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


# What marshal takes, which has no public name.
def _write(file: IO[bytes], value: Any) -> None:
    data = marshal.dumps(value)
    file.write(len(data).to_bytes(8, "big") + data)
    file.flush()


# What the other side has written, by `_write` of the same module.
def _next(file: IO[bytes]) -> Any:
    """The next value, None at the end."""
    try:
        size = file.read(8)
        data = file.read(int.from_bytes(size, "big")) if len(size) == 8 else b""
        return marshal.loads(data)
    except (OSError, EOFError, ValueError, TypeError):
        return None


def _serve(given: IO[bytes], answers: IO[bytes]) -> None:
    """The life of the process: searches until nobody asks any more."""
    patterns = [re.compile(regex) for regex in _next(given) or ()]
    while (asked := _next(given)) is not None:
        numbers, lines = asked
        for number in numbers:
            _write(answers, _found(patterns[number], lines))


if __name__ == "__main__":
    try:
        _serve(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        os._exit(0)
