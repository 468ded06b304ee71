"""One word, one meaning: docs/glossary.md and the names of the packages."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("launcher/algorun", "train/algorun_train", "client", "compat/algorun_smdistributed")
# Words of the third column that name something else in code as well, so that no test can tell which is meant.
ELSEWHERE = """
abort again agent argument attach axes barrier block budget bundle cache cached cancel chunk client config
coordinator copy cost costs curve dashboard dataset decision delta download error event experiment export extra form
freeze fuse go_on gone group hardware held holder host_rank interface iteration key launcher layout link loads lock
loop masking master metadata missing monitor ms n node np objective op order outside packet parent part password
pending process_count progress proof pruned pull result return_code run runner save search server simulation skipped
slice slot snapshot source spec status strategy study sync tail telemetry tie timestamp topology total trial type
update wait watch whole wire world
"""
SETTING = re.compile(r"(?<!\w)\w*BLAME_S|\bblame_s\b")  # ALGORUN_BLAME_S is what users have set


def files() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def refused() -> set[str]:
    """The words of the third column, without those of the first, where they have another meaning."""
    lines = (ROOT / "docs" / "glossary.md").read_text().splitlines()
    rows = [row for line in lines if len(row := line.strip("|").split("|")) == 3]
    good, bad = ({word.strip(" `").lower() for row in rows for word in re.split("[,;]", row[at])} for at in (0, 2))
    return bad - good - {"", "-", "not", "---"}


@cache
def said(source: str) -> list[tuple[int, str]]:
    """Every name, text and comment of a file, with its line."""
    return list(_said(source))


def _said(source: str) -> Iterator[tuple[int, str]]:
    """The syntax tree has the pieces of an f-string in every Python."""
    for node in ast.walk(ast.parse(source)):
        for _, value in ast.iter_fields(node):
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, str):
                    yield getattr(node, "lineno", 0), each
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@cache
def stems(text: str) -> frozenset[str]:
    """The words of a name or a text in small letters, with and without an ending."""
    found = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", SETTING.sub("", text))}
    return frozenset(found | {word.removesuffix(end) for word in found for end in ("s", "d", "es", "ed")})


def phrase(words: str) -> re.Pattern[str]:
    """Several words one after another: with blanks, line breaks, `-` or `_` between them."""
    return re.compile(r"(?<![a-z])" + r"[\s_-]+".join(re.split("[ -]", words)) + r"(?![a-z])")


def found_in(source: str, never: set[str]) -> list[tuple[int, str]]:
    """The words of `never` in a file, with their lines."""
    single = {word for word in never if word.isalpha()}
    several = {word: phrase(word) for word in never - single}
    return [
        (line, word)
        for line, text in said(source)
        for word in (stems(text) & single) | {each for each, words in several.items() if words.search(text.lower())}
    ]


def let_through() -> set[str]:
    return {word.replace("_", " ") for word in ELSEWHERE.split()}


def test_no_name_text_or_comment_has_a_word_that_the_glossary_refuses():
    never = refused() - let_through()
    assert never >= {"blame", "culprit", "evidence", "handshake", "incarnation", "pulse", "wish"}
    found = {str(path.relative_to(ROOT)): places for path in files() if (places := found_in(path.read_text(), never))}
    assert found == {}


def test_a_word_is_let_through_only_while_code_has_it():
    """Once its last use is gone, the word is refused."""
    left = let_through()
    assert left <= refused()
    for path in files():
        left -= {word for _, word in found_in(path.read_text(), left)}
    assert left == set()


@pytest.mark.parametrize(
    "source",
    [
        *("x = f'{a} wishes {b}'", "wish_s = 1", "def f(theWish): ...", "x = 1  # a wish", "x.wish = 1", "f(wish=1)"),
        *("'''As wished.'''", "x = f'{wish}'", "def f():\n    global WISH"),
    ],
)
def test_every_place_of_a_word_is_seen(source):
    assert {word for _, word in found_in(source, {"wish"})} == {"wish"}


def test_a_phrase_is_seen_in_names_and_across_lines():
    source = "a = 'side'\nside_channel = 'b side\\nchannel, side, channel'\nc = 'beside channel'"
    assert found_in(source, {"side channel"}) == [(2, "side channel")] * 2


def test_no_public_class_name_stands_for_two_things():
    places = defaultdict(list)
    for path in files():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert len(places) > 500
    for name in ("DistributedModel", "StepOutput"):  # AWS gives both frameworks the same names
        places[name] = [place for place in places[name] if "/modelparallel/tensorflow/" not in place]
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
