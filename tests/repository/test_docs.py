"""The pages name files, headings and objects that exist: a page that names what has moved misleads its reader."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "tests/*.md", "train/**/*.md", "examples/**/*.md", ".github/**/*.md")
    for page in ROOT.glob(pattern)
)
FOLDERS = ("launcher", "train", "client", "compat", "docker", "docs", "examples", "bench", "tests", ".ci")
OLD = {"upgrade.md", "CHANGELOG.md"}  # they name files of earlier versions


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", without_code(page.read_text()), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            wrong.append(target)
    assert not wrong


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in OLD], ids=lambda page: page.name)
def test_paths_are_those_of_files(page):
    """In backticks: a path from the top of the repository, or from the page."""
    text = page.read_text()
    paths = {path for path in re.findall(r"`([\w.-]+/[\w./-]*)`", text) if path.split("/")[0] in FOLDERS}
    paths = {path for path in paths if not re.search("[A-Z]{4}", path)}  # launcher/ROOM, jobs/NAME.py
    assert not sorted(path for path in paths if not (ROOT / path).exists() and not (page.parent / path).exists())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_row_of_a_table_has_the_cells_of_its_head(page):
    """A reader sees a broken row as text, or loses its last cell."""
    wrong, head = [], 0
    for line in without_code(page.read_text()).splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        head = head or cells if cells else 0
        if cells != head or (cells and not line.rstrip().endswith("|")):
            wrong.append(line)
    assert not wrong


def rooms(package: Path) -> set[str]:
    """The folders of a package that hold modules."""
    return {each.parent.name for each in package.glob("*/__init__.py")}


@pytest.mark.parametrize(
    "package",
    [
        "launcher/algorun",
        "train/algorun_train",
        "client/algorun_client",
        "client/algorun_report",
        "compat/algorun_smdistributed",
    ],
)
def test_the_architecture_names_every_room_and_no_other(package):
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text.partition(f"Rooms of `{package}/`:")[2].partition("|\n\n")[0]
    named = {
        name
        for row in table.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`([\w/]+)/`", row.split("|")[1])
    }
    assert named == rooms(ROOT / package)


@pytest.mark.parametrize("page", [ROOT / "docs" / "structure.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_objects_are_where_a_page_says(page):
    """`Name` in `path/to/file.py`, or a row of a table that begins with `Name` and ends with the path."""
    text = page.read_text()
    pairs = re.findall(r"`([A-Za-z_]+)` in\s+`([\w./-]+\.py)`", text)
    pairs += re.findall(r"^\| `([A-Za-z_]+)`.*\| `([\w./-]+\.py)` \|$", text, flags=re.MULTILINE)
    wrong = []
    for name, path in pairs:
        file = ROOT / path
        pattern = rf"^(class|(async )?def) {name}\b|^{name}\b\s*[:=]|^    def {name}\b"
        if not file.exists() or not re.search(pattern, file.read_text(), flags=re.MULTILINE):
            wrong.append(f"{name} in {path}")
    assert pairs
    assert not wrong


DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


@pytest.mark.parametrize("record", DECISIONS, ids=lambda record: record.stem)
def test_a_decision_is_short_and_says_what_would_change_it(record):
    lines = record.read_text().splitlines()
    headings = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    assert len(lines) <= 40
    assert headings == ["Decision", "Why", "Refused", "What would change our mind"]
    assert re.match(rf"# {record.name[:3]}: ", lines[0])
    assert any(re.search(r"\b20\d\d-\d\d-\d\d\b", line) for line in lines[1:4])


def test_the_list_of_decisions_has_each_of_them():
    listed = re.findall(r"\]\(([0-9][\w-]+\.md)\)", (ROOT / "docs" / "decisions" / "README.md").read_text())
    assert listed == [record.name for record in DECISIONS]


def test_each_public_report_has_an_address_and_a_test_that_exists():
    """A row without an input that a test runs would prove nothing."""
    rows = [line for line in (ROOT / "docs" / "public-reports.md").read_text().splitlines() if line.startswith("| [")]
    wrong = []
    for row in rows:
        report, *_, tests = (cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1])
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)", tests)
        missing = [name for file, name in named if f"def {name}(" not in (ROOT / file).read_text()]
        if not named or missing or not re.search(r"\]\(https://[^)]+\)", report):
            wrong.append(row)
    assert len(rows) > 200
    assert not wrong
