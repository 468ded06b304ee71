"""What a host leaves behind: output/failure or output/success, and the closing line."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
from pathlib import Path

from algorun.codec import loads
from algorun.control.failure import SHOWN, Failure
from algorun.control.hang import Stack
from algorun.control.messages import Verdict
from algorun.errors import UserError
from algorun.job.paths import Paths, free, reserve, write_aside, write_reserved

RESULT = "result.json"
LARGEST_SUMMARY = 64 * 1024  # bytes
LONGEST_USER_TEXT = 4096  # characters that are kept of what the user's own script writes to output/failure
LONGEST_FIGURES = 1000  # characters: they travel to all hosts and end up in one line


def clear(paths: Paths) -> None:
    """Removes what an earlier run in the same folder has left, so that it cannot be taken for this one's."""
    for path in (paths.failure, paths.success, paths.exit_message, paths.summary, paths.output_data / RESULT):
        free(path)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def begin(paths: Paths) -> None:
    """At the start of a run: nothing of an earlier one, and room for output/failure should the disk fill up."""
    clear(paths)
    for path in paths.last_words:
        reserve(path)


def user_failure_text(paths: Paths) -> str:
    """What the user's own script has written to output/failure in this run, "" where it has not."""
    try:
        fd = os.open(paths.failure, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            data = file.read(4 * LONGEST_USER_TEXT) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return ""
    text = re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", data.decode("utf-8", "replace")).replace("\r\n", "\n")
    text = "".join(c if c.isprintable() or c in "\n\t" else " " if c.isspace() else "" for c in text)
    return text.strip()[:LONGEST_USER_TEXT]


def forget_user_failure_text(paths: Paths) -> None:
    """Another attempt follows: what the script has said of this one is not the next one's."""
    with contextlib.suppress(OSError):
        paths.failure.unlink(missing_ok=True)


def write_result(paths: Paths, verdict: Verdict, line: str) -> None:
    """result.json beside the output data: the outcome for programs. Its absence is no failure of the job."""
    with contextlib.suppress(OSError):
        text = json.dumps({"kind": verdict.kind, "code": verdict.code, "line": line})
        write_aside(paths.output_data / RESULT, text + "\n")


def read_result(paths: Paths) -> dict[str, object]:
    """result.json, {} where there is none."""
    return read_json(paths.output_data / RESULT)


def read_json(path: Path | str) -> dict[str, object]:
    """The JSON object in a small file of ours, {} where there is none."""
    try:
        found = loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write(paths: Paths, verdict: Verdict, own: str = "") -> str:
    """Writes the outcome; returns a warning where that failed (a full disk must not change the exit code).

    `own` is what this host's script has said of a failure; the verdict may hold another host's.
    """
    failure = verdict.failure
    try:
        if failure is None:
            for path in paths.last_words:
                free(path)
            write_aside(paths.success, "")
            return ""
        text = failure.text(SHOWN - 1) + "\n"
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
    """What ended an attempt that another one follows, beside the output data."""
    with contextlib.suppress(OSError):
        write_aside(paths.output_data / f"failure-attempt-{attempt}.txt", full_text(cause))


def write_stack(paths: Paths, stack: Stack) -> None:
    """What a hanging job's rank was doing, all of its threads, beside the output data."""
    head = f"rank {stack.rank} on {stack.host}, step {stack.steps}"
    text = stack.text or ("the process does not answer" if stack.frozen else "this process cannot be asked")
    with contextlib.suppress(OSError):
        write_aside(paths.output_data / f"stacks-rank-{stack.rank:05d}.txt", f"{head}\n{text}\n")


def write_error(paths: Paths, error: UserError, host: str = "this host") -> None:
    """output/failure for an error before the hosts could meet."""
    clear(paths)
    write(paths, Verdict("failed", error.code, Failure("configuration", host, error.code, str(error))))


def full_text(failure: Failure) -> str:
    """The failure with all of the traceback that was kept."""
    hint = f"hint: {failure.hint}" if failure.hint else ""
    parts = [failure.user_text, failure.headline(), failure.traceback.strip(), failure.note, failure.others, hint]
    return "\n".join(part for part in parts if part) + "\n"


def figures(path: Path) -> str:
    """summary.json of the training program as ` key=value` pairs, "" where there is none."""
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
    return str(value).isprintable() and " " not in str(value)  # one line, and one word each


def _figure(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}" if math.isfinite(value) and abs(value) < 100 else f"{value:.1f}"
    return str(value)


def closing_line(verdict: Verdict, nnodes: int, world_size: int) -> str:
    """The last line of a run, for people and for scripts."""
    where = f"nnodes={nnodes} world_size={world_size}"
    if verdict.failure is not None:
        return f"failed {where} code={verdict.code} {verdict.failure.headline()}"
    if verdict.kind == "stopped":
        return f"stopped {where} why={verdict.why}"
    return f"ok {where} {verdict.why}".rstrip()
