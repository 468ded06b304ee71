"""Every reader of outside bytes: honest inputs, inputs that were faults once, and a fixed slice of mutated ones.

`make test-all PART=fuzz` runs 100,000 inputs a reader, guided by coverage; see docs/fuzzing.md.
"""

from __future__ import annotations

import contextlib
import random
import re
import signal
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT

from .campaign import BEGIN
from .catalogue import NAMES, load

LIMIT_S = 5.0  # for one input, on a busy machine
KEPT = 200  # mutated inputs that others are made of


class TooSlow(BaseException):
    """No `except Exception` of a reader holds it up."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.filterwarnings("ignore")  # of the interpreter's parser and of torch, about the words of an input
@pytest.mark.parametrize("name", NAMES)
def test_whatever_comes_is_taken_or_refused_cleanly(name):
    reader, generator = load(name), random.Random(f"algorun {name}")
    corpus = reader.start()
    made = list(corpus)
    for _ in range(reader.quick):
        made.append(reader.mutate(generator.choice(corpus), generator))
        corpus = [*corpus, made[-1]][:KEPT]
    for data in made:
        try:
            with limited():
                reader.read(data)
        except BaseException as error:
            raise AssertionError(f"{name}: {type(error).__name__} on {data[:2000]!r}") from error


def test_the_page_promises_something_of_every_reader_and_measures_no_other():
    page = (ROOT / "docs" / "fuzzing.md").read_text(encoding="utf-8")
    promises, measured = (set(re.findall(r"^\| ([a-z, -]+) \|", text, re.M)) for text in page.split(BEGIN))
    assert {name for names in promises - {"readers"} for name in names.split(", ")} == set(NAMES)
    assert measured - {"reader"} <= set(NAMES)


def test_every_regression_belongs_to_a_reader():
    from .reader import REGRESSIONS

    assert {path.name for path in REGRESSIONS.iterdir()} <= set(NAMES)
