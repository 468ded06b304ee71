"""The files that a host writes at the end (output/failure or output/success, and more), and the closing line."""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from algorun.common.codec import loads
from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass
from algorun.common.plain_text import plain
from algorun.control.failures.failure import SHOWN, Failure
from algorun.control.hang.hang import Stack
from algorun.control.wire.messages import Verdict
from algorun.job.paths import Paths, free, reserve, write_aside, write_reserved

RESULT = "result.json"
LARGEST_SUMMARY = 64 * 1024  # bytes
LONGEST_USER_TEXT = 4096  # characters kept of the text that the user's script writes to output/failure
LONGEST_FIGURES = 1000  # characters of the figures in the closing line, which all hosts get


def clear(paths: Paths) -> None:
    """Removes the result files of an earlier job in the same folder."""
    for path in (paths.failure, paths.success, paths.exit_message, paths.summary, paths.output_data / RESULT):
        free(path)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def begin(paths: Paths, host: str) -> None:
    """At the start of a job: removes earlier results, and reserves disk space for output/failure."""
    clear(paths)
    for path in (paths.host_figures(host), *paths.output_data.glob(paths.step_trace(host, "*").name)):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    for path in paths.last_words:
        reserve(path)


def user_failure_text(paths: Paths) -> str:
    """The text that the user's script has written to output/failure in this attempt, "" without one."""
    try:
        fd = os.open(paths.failure, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            data = file.read(4 * LONGEST_USER_TEXT) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return ""
    return plain(data.decode("utf-8", "replace")).strip()[:LONGEST_USER_TEXT]


def forget_user_failure_text(paths: Paths) -> None:
    """Removes the script's output/failure before another attempt."""
    with contextlib.suppress(OSError):
        paths.failure.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a host knows of a job beside its outcome.

    `times`: where the time of this host went (timing/table.py); `ran`: what ran (what_ran.py); `failed_ranks`: its ranks that have
    failed in the last attempt; `table`: the closing table, "" if this host has printed it.
    """

    times: Mapping[str, object]
    ran: Mapping[str, object]
    failed_ranks: Sequence[int] = ()
    table: str = ""


def write_result(paths: Paths, verdict: Verdict, line: str, facts: HostFacts) -> None:
    """Writes result.json, the outcome for programs, into output/data. If that fails, the job does not."""
    with contextlib.suppress(OSError):
        found = {"kind": verdict.kind, "code": verdict.code, "line": line, "times": facts.times, "ran": facts.ran}
        if facts.failed_ranks:
            found["failed_ranks"] = list(facts.failed_ranks)
        if facts.table:
            found["table"] = facts.table
        if verdict.slow:
            found["slow"] = verdict.slow
        if verdict.data:
            found["data"] = verdict.data
        if verdict.above:
            found["above"] = verdict.above
        if verdict.failure is not None and verdict.failure.rank is not None:
            found["failed"] = {"host": verdict.failure.host, "rank": verdict.failure.rank}
        write_aside(paths.output_data / RESULT, json.dumps(found) + "\n")


def read_result(paths: Paths) -> dict[str, object]:
    """The content of result.json, {} without one."""
    return read_json(paths.output_data / RESULT)


def failed_rank(result: Mapping[str, object]) -> tuple[str, int] | None:
    """Host and rank of the root cause in the content of result.json; None if it is no rank's."""
    failed = result.get("failed")
    host, rank = (failed.get("host"), failed.get("rank")) if isinstance(failed, dict) else (None, None)
    return (host, rank) if isinstance(host, str) and isinstance(rank, int) else None


def failed_ranks(result: Mapping[str, object]) -> list[int]:
    """The ranks of one host that have failed, in the content of its result.json."""
    listed = result.get("failed_ranks")
    return [rank for rank in listed if isinstance(rank, int)] if isinstance(listed, list) else []


def read_json(path: Path | str) -> dict[str, object]:
    """The JSON object in a small file of the launcher, {} if it cannot be read."""
    try:
        found = loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write(paths: Paths, verdict: Verdict, own: str = "") -> str:
    """Writes output/success or output/failure. Returns a warning if that failed: a full disk must not change the exit
    code.

    `own`: the text that this host's script has written to output/failure. The verdict may hold another host's text.
    """
    failure = verdict.failure
    try:
        if failure is None:
            for path in paths.last_words:
                free(path)
            write_aside(paths.success, "")
            return ""
        text = plain(failure.text(SHOWN - 1)) + "\n"
        for path in paths.last_words:
            write_reserved(path, text)
        full = full_text(failure)
        if own and own != failure.user_text:
            full += f"\noutput/failure as this host's program wrote it:\n{own}\n"
        write_aside(paths.output_data / "failure-full.txt", full)
    except OSError as error:
        return f"algorun: warning: {paths.output}: {error.strerror}"
    return ""


def write_attempt(paths: Paths, attempt: int, cause: Failure) -> None:
    """Writes the failure that ended an attempt before a restart, into output/data."""
    with contextlib.suppress(OSError):
        write_aside(paths.output_data / f"failure-attempt-{attempt}.txt", full_text(cause))


def write_stack(paths: Paths, stack: Stack) -> None:
    """Writes the stacks of all threads of one rank of a hanging job, into output/data."""
    head = f"rank {stack.rank} on {stack.host}, step {stack.steps}"
    text = stack.text or ("the process does not answer" if stack.frozen else "this process cannot be asked")
    calls = "".join(f"  {call} ({call.place})\n" for call in stack.calls)
    last = f"\nlast collective calls, the newest last:\n{calls}" if calls else ""
    with contextlib.suppress(OSError):
        write_aside(paths.output_data / f"stacks-rank-{stack.rank:05d}.txt", f"{head}\n{text}\n{last}")


def write_error(paths: Paths, error: UserError, host: str = "this host") -> None:
    """Writes output/failure for an error that ends this host before it meets the others. No configuration is known that could
    name the job's secrets: their form tells them."""
    from algorun.common.secret_values import hidden  # most jobs have no such error

    clear(paths)
    write(paths, Verdict("failed", error.code, Failure("configuration", host, error.code, hidden(str(error)))))


def full_text(failure: Failure) -> str:
    """The failure with its whole traceback."""
    hint = f"hint: {failure.hint}" if failure.hint else ""
    parts = [failure.user_text, failure.headline(), failure.traceback.strip(), failure.note, failure.others, hint]
    return plain("\n".join(part for part in parts if part)) + "\n"


def figures(path: Path) -> str:
    """The figures of the training program (summary.json) as `key=value key=value`, "" without any."""
    try:
        with open(path, encoding="utf-8") as file:
            values = loads(file.read(LARGEST_SUMMARY))
    except (OSError, ValueError):
        return ""
    if not isinstance(values, dict):
        return ""
    shown = ""
    for key, value in values.items():
        pair = f"{key}={_figure(value)}" if _plain(key, value) else ""
        if pair and len(shown) + len(pair) < LONGEST_FIGURES:
            shown += f" {pair}" if shown else pair
    return shown


def _plain(key: str, value: object) -> bool:
    if not (key.replace("_", "").isalnum() and isinstance(value, (int, float, str))):
        return False
    return str(value).isprintable() and " " not in str(value)  # the closing line is one line, a figure one word


def _figure(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}" if math.isfinite(value) and abs(value) < 100 else f"{value:.1f}"
    return str(value)


def closing_line(verdict: Verdict, nnodes: int, world_size: int) -> str:
    """The last line of a job, for people and for scripts."""
    where = f"nnodes={nnodes} world_size={world_size}"
    if verdict.failure is not None:
        return _one_line(f"failed {where} code={verdict.code} {verdict.failure.headline()}")
    if verdict.kind == "stopped":
        return _one_line(f"stopped {where} why={verdict.why}")
    return _one_line(f"ok {where} {verdict.why}".rstrip())


def _one_line(text: str) -> str:
    return " ".join(plain(text).split("\n"))
