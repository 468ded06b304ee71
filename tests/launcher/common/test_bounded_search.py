"""Regular expressions of any kind end in bounded time, and cost only themselves."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from algorun.common import bounded_search
from algorun.common.bounded_search import BoundedSearch, compiled, is_linear
from algorun.job import metric_definitions

# With the line on which each takes longer than anybody waits.
SLOW = {
    r"(a+)+$": "a" * 200 + "b",
    r"(a|aa)+$": "a" * 200 + "b",
    r"(\w+\s?)*!": "aaaa " * 200,
    r"(?:(?:a?){30}){30}$": "a" * 200 + "b",
    r".*x": "a" * 256 * 1024,  # no signal ends it up to Python 3.11
    r"(.*)(.*)(.*)(.*)x": "a" * 5000,
}
LOSS = r"loss=(\S+)"


@pytest.mark.parametrize(("regex", "line"), SLOW.items(), ids=SLOW)
def test_a_slow_expression_is_named_once_and_the_others_go_on(regex, line):
    told: list[tuple[int, str]] = []
    began = time.monotonic()
    with BoundedSearch([LOSS, regex, "b$"], lambda *each: told.append(each), budget_s=0.3) as search:
        lines = ["loss=1", line, "loss=2", "b"]
        first = search.search(lines)
        assert first == [[(0, "1"), (2, "2")], [], [(3, "b")] if line[-1] != "b" else [(1, "b"), (3, "b")]]
        assert search.search(lines * 3)[0] == [(4 * n + at, str(1 + at // 2)) for n in range(3) for at in (0, 2)]
        assert search.slow == {1}
    ((number, text),) = told
    assert number == 1
    assert text.startswith(f"the regular expression {regex!r} takes more than 0.3 s on a few lines")
    assert "; fix: " in text
    assert time.monotonic() - began < 20


def test_it_finds_what_re_finds():
    regexes = [LOSS, "loss=([0-9.]+)", r"\d+", r"(x)|y", r"(?P<name>é+)", "^$"]
    lines = ["", "loss=0.5 loss=7", "y 12", "x", "éé \ud800", "a\nloss=3", "loss=1 " * 500] * 300
    with BoundedSearch(regexes, pytest.fail) as search:
        found = search.search(lines)
        assert search.search([]) == [[]] * 6
    for regex, values in zip(regexes, found, strict=True):
        pattern = re.compile(regex)
        matches = [(at, pattern.search(line)) for at, line in enumerate(lines)]
        assert values == [(at, (match[1] if pattern.groups else match[0]) or "") for at, match in matches if match]


@pytest.mark.parametrize(
    "each", [*metric_definitions.PRINTED, *metric_definitions.ONE_MEAN_EACH], ids=lambda each: each["Name"]
)
def test_the_usual_expressions_need_no_process(each):
    assert is_linear(each["Regex"])
    with BoundedSearch([each["Regex"]], pytest.fail) as search:
        text, _, end = each["Regex"].partition(metric_definitions.NUMBER)
        end = end.replace("(?:learning_rate|train_perplexity)", "train_perplexity")
        assert search.search([f"{text}0.5{end} end"]) == [[(0, "0.5")]]
        assert search._searcher is None
        began = time.monotonic()
        for line in (text * 20_000, text + "1" * 256 * 1024, f"{text}1" * 20_000, text[0] * 256 * 1024):
            search.search([line])
        assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    "regex",
    [
        *SLOW,
        "([0-9]+)x",
        "1([0-9]+)x",
        r"\.([0-9\.]+)x",
        "a([a-z]+)$",
        "a([0-9]+)(?:b|c)+",
        "a([0-9]+)(?:b|c*)",
        "(a)([0-9]+)",
        "a|b([0-9]+)",
    ],
)
def test_other_expressions_have_a_process(regex):
    assert not is_linear(regex)


def test_a_process_that_is_killed_costs_no_expression():
    with BoundedSearch([LOSS, "x"], pytest.fail) as search:
        search.search(["loss=1"])
        os.kill(search._searcher._process.pid, signal.SIGKILL)
        time.sleep(0.1)
        assert search.search(["loss=1 x"]) == [[(0, "1")], [(0, "x")]]


def test_no_process_is_left(monkeypatch):
    started = []
    popen = bounded_search.subprocess.Popen
    monkeypatch.setattr(
        bounded_search.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1]
    )
    with BoundedSearch(["(a+)+$", "a"], lambda *_: None, budget_s=0.1) as search:
        search.search(["a" * 100 + "b"])
    BoundedSearch(["a"], pytest.fail).close()
    assert len(started) == 2
    assert all(each.returncode is not None for each in started)


@pytest.mark.parametrize("regex", ["(", "a{99999999999999999999}", "(" * 20_000 + ")" * 20_000, "[b-a]", r"\8"])
def test_what_cannot_be_compiled_is_a_value_error(regex):
    with pytest.raises(ValueError, match=r"\w"):
        compiled(regex)
