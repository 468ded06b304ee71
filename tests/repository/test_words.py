"""One word, one meaning: docs/glossary.md and the names of the packages."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("launcher/algorun", "train/algorun_train", "client", "compat/algorun_smdistributed")
# Of the third column ("not") those words that name nothing else in code: `run` or `server` have other meanings, too.
NEVER = {"blame", "culprit", "evidence", "handshake", "incarnation", "pulse", "wish"}
SETTING = re.compile(r"(?<!\w)\w*BLAME_S|\bblame_s\b")  # ALGORUN_BLAME_S is what users have set


def files() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def refused() -> set[str]:
    rows = (line.strip("|").split("|") for line in (ROOT / "docs" / "glossary.md").read_text().splitlines())
    return {word.strip(" `") for row in rows if len(row) == 3 for word in row[2].split(",")}


def test_the_glossary_refuses_these_words():
    assert refused() >= NEVER


def test_no_name_docstring_or_comment_has_a_word_that_the_glossary_refuses():
    found = []
    for path in files():
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type in (tokenize.NAME, tokenize.COMMENT, tokenize.STRING):
                words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", SETTING.sub("", token.string))
                stems = {re.sub(r"(e?d|s|es)$", "", word.lower()) for word in words} | {word.lower() for word in words}
                if stems & (NEVER | {"blam"}):
                    found.append(f"{path.relative_to(ROOT)}:{token.start[0]}: {token.string[:60]}")
    assert found == []


def test_no_public_class_name_stands_for_two_things():
    places = defaultdict(list)
    for path in files():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert len(places) > 500
    places["UserError"].remove("train/algorun_train/common/errors.py")  # the same thing: training imports no launcher
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
