"""What can go wrong before and around the ranks, and the exit code each thing has on every host."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The launcher's own exit codes. Codes of the user's script pass through; `128 + n` stands for signal n."""

    OK = 0
    CONFIGURATION = 64  # bad input, or hosts that do not agree on it
    GATE = 65  # a host did not come within the gate limit
    LOST = 66  # a host or the hub was lost
    HANG = 67  # a rank hangs
    BUDGET = 68  # restarts are spent, or bring no newer checkpoint
    PREFLIGHT = 69  # this machine cannot run the job
    DEFECT = 70  # a defect of the launcher


class UserError(Exception):
    """One clear error about something the user gave.

    `where` names the option, file or key; `what` says what is wrong with it, with the value; `allowed` what it may be;
    `fix` what to do. `code` is the exit code.
    """

    def __init__(
        self, where: str, what: str, *, allowed: str = "", fix: str = "", code: int = ExitCode.CONFIGURATION
    ) -> None:
        self.where, self.what, self.allowed, self.fix, self.code = where, what, allowed, fix, int(code)
        parts = [f"{where}: {what}"]
        if allowed:
            parts.append(f"allowed: {allowed}")
        if fix:
            parts.append(f"fix: {fix}")
        super().__init__("; ".join(parts))


def exit_code(returncode: int) -> int:
    """A process's return code as Popen gives it (-n for signal n) as a shell's exit code (128 + n)."""
    return 128 - returncode if returncode < 0 else returncode
