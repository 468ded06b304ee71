"""docs/troubleshooting.md is searched for the first words of a message: those in its tables and examples are the sources' own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from algorun.common.errors import ExitCode
from algorun.control.failures.failure import Failure
from algorun.control.wire.messages import Verdict
from algorun.outcome.report import closing_line
from algorun_client.follow.outcome import root_cause

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("launcher/algorun", "train/algorun_train", "client/algorun_client", "client/algorun_report")
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
VALUE = "\0"  # in a text of the sources: what is put in
FRAMES = (
    "algorun: error: ",
    "algorun: warning: ",
    "algorun: job .. ",
    "algorun: attempt .. ",
    "algorun: ",
    "error: ",
    "warning: ",
    "hint: ",
)


@cache
def texts() -> tuple[str, ...]:
    """Every text that the sources can put together in one place, with VALUE where a value goes; no docstrings."""
    found: dict[str, None] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for text in _texts(ast.parse(path.read_text())):
                found[text] = None
    return tuple(found)


def _texts(tree: ast.AST) -> Iterator[str]:
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if node in docstrings:
            continue
        if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp):
            yield _text(node)
        elif isinstance(node, ast.Call):
            words = [_text(each) for each in node.args[:3]]
            yield from (": ".join(words[at : at + 2]) for at in range(len(words) - 1))  # UserError(where, what)


def _text(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) if isinstance(part, ast.Constant) else VALUE for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
        case _:
            return VALUE


def kinds() -> set[str]:
    """The kinds of failures, as the docstring of `Failure` lists them."""
    text = (ROOT / "launcher" / "algorun" / "control" / "failures" / "failure.py").read_text()
    listed = re.search(r"kind: ([\w\s,]+?)\.", text)[1]
    return set(re.findall(r"\w+", listed)) - {"or"}


def body(message: str) -> str:
    """The message without what stands in front of many: `algorun: error: `, or kind, host and code of a failure."""
    found = re.match(r"([a-z]+): .*?(?:, exit (\d+))?(?:: |$)", message)
    if found and found[1] in kinds():
        without_colon = re.match(r"[a-z]+: rank \.\. (?!on\b)(.+)", message)  # `left: rank .. left with 0`
        return message[found.end() :] or (without_colon[1] if without_colon else "")
    return next((message.removeprefix(frame) for frame in FRAMES if message.startswith(frame)), message)


def is_said(message: str) -> bool:
    """True if the constant words of `message`, between `..`, stand in this order in one text of the sources.

    Pieces of three words and more may be texts of their own, and so may place and fault of an error.
    """
    pieces = [piece.strip(" :") for piece in re.split(r"\.\.", message)]
    pieces = [piece for piece in pieces if re.search(r"\w", piece)]
    if not pieces:
        return True
    if _in_one_text(pieces):
        return True
    if len(pieces) > 1 and all(len(piece.split()) > 2 and _in_one_text([piece]) for piece in pieces):
        return True
    place, colon, fault = message.partition(": ")
    return bool(colon) and is_said(place) and is_said(fault)


def _in_one_text(pieces: list[str]) -> bool:
    return any(_in_order(pieces, text) for text in texts())


def _in_order(pieces: list[str], text: str) -> bool:
    """Whether the pieces stand in the text, each behind the one before."""
    at = 0
    for piece in pieces:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


def tables() -> list[list[str]]:
    """The messages of each table of `Find a message`."""
    part = PAGE[PAGE.index("## Find a message") : PAGE.index("## Read a failure")]
    return [re.findall(r"^\| `(.+?)` \|", each, flags=re.MULTILINE) for each in part.split("### ")[1:]]


MESSAGES = [message for table in tables() for message in table]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_that_the_page_lists_is_one_of_the_sources(message):
    assert is_said(body(message))


@pytest.mark.parametrize(
    "message", ["gate: .., exit 65: hosts absent after", "algorun: error: --image: no picture is named"]
)
def test_a_text_that_has_drifted_is_found(message):
    assert not is_said(body(message))


def test_the_tables_are_sorted_and_have_each_message_once():
    for table in tables():
        assert table == sorted(set(table), key=str.casefold)
    assert len(MESSAGES) > 70


def test_each_kind_of_failure_and_each_exit_code_is_listed():
    from algorun.common.errors import ExitCode
    from algorun_client.common.codes import ClientCode

    assert {kind for kind in kinds() if not any(message.startswith(f"{kind}: ") for message in MESSAGES)} == set()
    part = PAGE[PAGE.index("## Find a message") : PAGE.index("## Read a failure")]
    codes = {int(code) for code in re.findall(r"(?i)\bexit (\d+)", part)}
    assert {*ExitCode, *ClientCode} - {0, *codes} == set()


# -- what stands in front of the words ---------------------------------------------------------------------------------

FORM = re.compile(
    r"(?P<kind>[a-z]+): (?P<rank>rank \.\.)?(?:[^:]*?, exit (?P<code>\d+)(?=:|$)|[^:]*)(?:: ?(?P<text>.*))?"
)
OF_FAILURES = [message for message in MESSAGES if body(message) != message and message.partition(":")[0] in kinds()]


def pattern(text: str, value: str) -> str:
    """A regular expression for a text of the page; `value` for what stands in place of `..`."""
    return value.join(re.escape(part) for part in text.split(".."))


def fronts() -> list[str]:
    """What the page tells its readers to leave out."""
    part = PAGE[PAGE.index("## Find a message") : PAGE.index("### Of a job")]
    return re.findall(r"^\| `(.+? )` \|", part, flags=re.MULTILINE)


def rows_of(line: str) -> list[str]:
    """The rows that a reader finds who leaves out what the page says, and searches for the first words of the rest."""
    line = re.sub(r"^\[[^\]]*\] ", "", line)
    for front in fronts():
        line = re.sub(f"^{pattern(front, '[0-9]+')}", "", line)
    return [message for message in MESSAGES if re.match(pattern(message, ".*?"), line)]


def failure_of(message: str) -> Failure:
    """A failure as its row has it, with other values."""
    form = FORM.fullmatch(message)
    of_rank, text = bool(form["rank"]), (form["text"] or "x").replace("..", "x")
    how_left = "left with 0 after step 3 while 1 rank still trained" if "left with" in message else ""
    code = int(form["code"] or (ExitCode.HANG if form["kind"] == "hang" else 1))
    return Failure(form["kind"], "algo-2", code, text, rank=3 if of_rank else None, how_left=how_left, step=7 * of_rank)


def printed(failure: Failure) -> list[str]:
    """The lines that begin with a failure: of a host, of its log in a job, the closing line, and SageMaker's reason."""
    headline = failure.headline()
    closing = [closing_line(Verdict("failed", failure.code, failure), 2, world_size) for world_size in (0, 4)]
    reason = f"AlgorithmError: {headline}, exit code: {failure.code}"
    assert root_cause(reason) == headline
    return [f"algorun: {headline}", f"[algo-2] algorun: {headline}", *closing, reason, headline]


@pytest.mark.parametrize("message", OF_FAILURES)
def test_the_words_of_a_failure_are_found_behind_all_that_is_printed_in_front(message):
    failure = failure_of(message)
    assert [line for line in printed(failure) if message not in rows_of(line)] == []


def test_a_row_in_a_form_that_nobody_prints_is_not_found():
    headline = Failure("lost", "algo-2", 66, "host lost: connection closed").headline()
    assert rows_of(headline) == ["lost: .., exit 66: host lost: connection closed"]
    assert rows_of(headline.replace("exit 66", "code 66")) == []
    assert rows_of(f"attempt 1: {headline}") == []


@cache
def codes() -> dict[str, set[str]]:
    """The exit codes that the sources give to each kind, as they are written there; \"error\" for that of a UserError."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "launcher" / "algorun").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Failure", "cls", "replace"):
                named = {each.arg: each.value for each in node.keywords}
                kind = named.get("kind") or (node.args[0] if len(node.args) > 2 else None)
                code = named.get("code") or (node.args[2] if len(node.args) > 2 else None)
                for each in ast.walk(kind) if kind and code else ():
                    if isinstance(each, ast.Constant) and each.value in kinds():
                        found.setdefault(each.value, set()).add(ast.unparse(code))
    return found


@pytest.mark.parametrize("message", [message for message in OF_FAILURES if ", exit " in message])
def test_a_row_has_the_exit_code_that_the_sources_give_to_its_kind(message):
    form = FORM.fullmatch(message)
    known = codes()[form["kind"]]
    # The code of a UserError is 64 where it names no other; a rank's own is any.
    of_error = any("ExitCode" not in each for each in known) and form["code"] == str(int(ExitCode.CONFIGURATION))
    assert of_error or f"ExitCode.{ExitCode(int(form['code'])).name}" in known


LOST = re.compile(r"(?:hub|hosts?) (?:lost|missing|not ready|not reached)\b(?=.*[a-z]{3})")


def test_each_way_to_lose_a_host_or_the_hub_is_listed():
    unlisted, seen = [], 0
    for text in filter(LOST.match, texts()):
        kind, code = ("lost", ExitCode.LOST) if " lost" in text else ("gate", ExitCode.GATE)
        words = text.replace(VALUE, "x")
        if words in ("host lost: x", "hub lost: x"):  # made of the words of others, which are listed
            continue
        seen += 1
        if not rows_of(Failure(kind, "algo-1", code, words).headline()):
            unlisted.append(text)
    assert not unlisted
    assert seen > 3


def examples() -> list[str]:
    """The texts of algorun, not of the user's program, in the examples of the page: those after kind and place."""
    blocks = "".join(re.findall(r"^```\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE))
    of_users = {"exception", "exit"}
    found = []
    for line in blocks.splitlines():
        headline = re.match(
            r"(?:algorun: |also: |then: )?([a-z]+): (?:rank \d+ on )?[\w-]+(?:, exit \d+[^:]*)?: (.*)", line
        )
        if headline and headline[1] in kinds():
            found += [headline[2]] if headline[1] not in of_users else []
        elif frame := next((frame for frame in FRAMES if line.startswith(frame)), ""):
            found.append(line.removeprefix(frame))
    return sorted(set(found))


@cache
def pieces_of_texts() -> list[list[str]]:
    """What is constant in the texts with several words of their own."""
    enough = [text for text in texts() if len(re.findall(r"[A-Za-z]{2,}", text)) > 1 and len(text) > 15]
    return [text.strip().split(VALUE) for text in enough]


@pytest.mark.parametrize("text", examples())
def test_an_example_is_made_of_texts_of_the_sources(text):
    whole = f"algorun: {text}"  # some texts have it in front themselves, as the table of times
    assert any(_in_order(pieces, each) for pieces in pieces_of_texts() for each in (text, whole))
