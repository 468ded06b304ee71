"""Lines that count as progress."""

from __future__ import annotations

import signal
import time

import pytest

from algorun.common.errors import UserError
from algorun.host.output.progress_lines import LONGEST, ProgressLines
from algorun.job.settings import PROGRESS


@pytest.fixture
def lines():
    """Makes one for an expression, and keeps its warnings."""
    warnings: list[str] = []
    before = signal.getsignal(signal.SIGVTALRM)
    yield lambda regex: (ProgressLines(regex, warnings.append), warnings)
    signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize(
    ("regex", "text", "found"),
    [
        ("step [0-9]+", b"epoch 1\nstep 7 loss 0.1\n", True),
        ("step [0-9]+", b"epoch 1\nsteps\n", False),
        ("^step", b"a\nstep 1\n", True),
        ("a\\s+b", b"a\nb\n", False),  # no line has both
        ("Verlust: \u00e4", "Verlust: \u00e4\n".encode(), True),
        (".", b"\n\n", False),
        ("x$", b"a" * LONGEST + b"x\n", False),
        ("\ufffd", b"\xff\n", True),
    ],
)
def test_each_line_is_searched_by_itself(regex, text, found, lines):
    progress, warnings = lines(regex)
    assert progress.found_in(text) is found
    assert not warnings


@pytest.mark.slow(but=["(a+)+$"])
@pytest.mark.parametrize("regex", ["(a+)+$", "(?:a|a)*c", "(.*a){20}c"])
def test_an_expression_that_takes_for_ever_is_switched_off_with_one_warning(regex, lines):
    progress, warnings = lines(regex)
    begun = time.process_time()
    assert not progress.found_in(b"a" * 500 + b"b\n")
    assert time.process_time() - begun < 5
    assert progress.off
    assert not progress.found_in(b"a\n")
    assert len(warnings) == 1
    assert warnings[0].startswith("ALGORUN_PROGRESS takes more than 1 s on a few lines, so it is switched off")
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_an_expression_that_python_cannot_compile_is_refused():
    for text in ("step [0-9", "(", "*", "a{99999999999999999999}"):
        with pytest.raises(UserError, match="ALGORUN_PROGRESS: .* is no regular expression: "):
            PROGRESS.read({PROGRESS.name: text})
    assert PROGRESS.read({PROGRESS.name: "step [0-9]+"}) == "step [0-9]+"
    assert PROGRESS.read({}) == ""
