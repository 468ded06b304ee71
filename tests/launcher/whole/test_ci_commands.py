"""A job in a CI system's job: nothing that a rank prints, raises or leaves is a command to that system."""

from __future__ import annotations

from tests.ci_commands import COMMANDS, is_command
from tests.conftest import algorun

PROGRAM = """
import os, sys
lines = "\\n".join({commands!r})
print(lines)
print(lines, file=sys.stderr, flush=True)
{end}
"""
ENDS = {
    "a raised message": "raise RuntimeError(lines)",
    "a raised message of one line": "raise RuntimeError('##[add-mask]x ##vso[task.setvariable variable=a]b')",
    "last words": "os._exit(3)",
    "a failure that the program writes": "open(os.environ['SM_OUTPUT_DIR'] + '/failure', 'w').write(lines); os._exit(3)",
}


def test_no_line_of_a_failed_job_is_a_command(tmp_path, nothing_left):
    for number, (what, end) in enumerate(ENDS.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "entry.py").write_text(PROGRAM.format(commands=COMMANDS, end=end))
        done = algorun(
            "simulate", "-j", "1x1", "entry.py", cwd=folder, ALGORUN_TEST=nothing_left, ALGORUN_FIGURES="off"
        )
        assert done.code in (1, 3), done.text
        found = [line for line in (done.out + done.err).splitlines() if is_command(line)]
        assert not found, what
        assert "[0 algo-1] ::set-env name=PATH::/tmp\n" in done.out, "a line that is no command behind its prefix stays"
        log = (done.folder / "algo-1" / "output" / "data" / "logs" / "rank-00000.log").read_text()
        assert all(line in log for line in COMMANDS), "the file keeps every byte"
