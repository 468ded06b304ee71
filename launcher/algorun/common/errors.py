"""The launcher's exit codes, equal on all hosts, and the error of a user's input, which all packages raise."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The launcher's own exit codes. A code of the user's script is passed on; `128 + n` stands for signal n."""

    OK = 0
    CONFIGURATION = 64  # bad input, or hosts with different input
    GATE = 65  # a host did not connect, or was not ready, within its time limit
    LOST = 66  # a host or the hub was lost
    HANG = 67  # a rank hangs, or an engine does not start its ranks
    BUDGET = 68  # no restart is left, the same failure came twice, or restarts bring no newer checkpoint
    PREFLIGHT = 69  # a host cannot run the job: machine/preflight.py, commands/doctor.py
    DEFECT = 70  # a defect of the launcher


# Characters of what is wrong, and of its place: a value may have a million, and SageMaker shows 1,024 of an error.
LONGEST, LONGEST_PLACE = 600, 250


def shortened(text: str, longest: int) -> str:
    """The text, without its middle if it has more characters than `longest`."""
    if len(text) <= longest:
        return text
    kept = longest // 2
    return f"{text[:kept]} ..({len(text) - 2 * kept} characters).. {text[-kept:]}"


class UserError(Exception):
    """An error in what the user gave: options, files, data. Its text is `where: what; allowed: ..; fix: ..`.

    Any process raises it, a rank for itself. Long places and values lose their middles.

    Args:
        where: The option, file or key. Without `what` it is the whole text, and not shortened: training's errors are written so.
        what: Its value, and what is wrong with it.
        allowed: The values that are allowed.
        fix: What to do.
        code: The exit code.
    """

    explains_itself = True  # the launcher looks for no hint, and for no other cause (inside/rank_report.py)

    def __init__(
        self, where: str, what: str = "", *, allowed: str = "", fix: str = "", code: int = ExitCode.CONFIGURATION
    ) -> None:
        self.where, self.what = shortened(where, LONGEST_PLACE) if what else where, shortened(what, LONGEST)
        self.allowed, self.fix, self.code = allowed, fix, int(code)
        parts = [f"{self.where}: {self.what}" if what else where]
        if allowed:
            parts.append(f"allowed: {allowed}")
        if fix:
            parts.append(f"fix: {fix}")
        super().__init__("; ".join(parts))


def exit_code(returncode: int) -> int:
    """The exit code as a shell shows it (128 + n for signal n), from Popen's `returncode` (-n for signal n)."""
    return 128 - returncode if returncode < 0 else returncode
