"""What a host leaves behind: output/failure or output/success, and the closing line."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path

from .codec import loads
from .control.failure import SHOWN, Failure
from .control.hang import Stack
from .control.messages import Verdict
from .errors import UserError
from .paths import Paths, write_aside

RESULT = "result.json"
LARGEST_SUMMARY = 64 * 1024  # bytes
LONGEST_FIGURES = 1000  # characters: they travel to all hosts and end up in one line


def clear(paths: Paths) -> None:
    """Removes what an earlier run in the same folder has left, so that it cannot be taken for this one's."""
    for path in (paths.failure, paths.success, paths.exit_message, paths.summary, paths.output_data / RESULT):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


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


def write(paths: Paths, verdict: Verdict) -> str:
    """Writes the outcome; returns a warning where that failed (a full disk must not change the exit code)."""
    try:
        if verdict.failure is not None:
            text = verdict.failure.text(SHOWN - 1) + "\n"
            write_aside(paths.failure, text)
            if paths.processing_resourceconfig.exists():
                write_aside(paths.exit_message, text)
            write_aside(paths.output_data / "failure-full.txt", full_text(verdict.failure))
        else:
            write_aside(paths.success, "")
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
    parts = [failure.headline(), failure.traceback.strip(), failure.note, failure.others, hint]
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
