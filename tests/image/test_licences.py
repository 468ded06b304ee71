"""docs/image.md names what models of folders add to the image: versions of the lock, licences of the packages."""

from __future__ import annotations

import importlib.util
import re

from tests.conftest import ROOT

_spec = importlib.util.spec_from_file_location("licence_table", ROOT / "docs" / "licence_table.py")
assert _spec is not None
assert _spec.loader is not None
licence_table = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(licence_table)


def rows() -> dict[str, tuple[str, str, float]]:
    """Version, licence and MB of each package in the table."""
    page = (ROOT / "docs" / "image.md").read_text()
    written = page.partition(licence_table.BEGIN)[2].partition(licence_table.END)[0]
    cells = re.findall(r"^\| ([a-z0-9-]+) \| (\S+) \| (.+) \| ([\d.]+) \|$", written, re.M)
    return {name: (version, licence, float(size)) for name, version, licence, size in cells}


def test_the_table_has_the_versions_of_the_image():
    locked = licence_table.locked()
    assert len(rows()) > 10
    assert {name: version for name, (version, _, _) in rows().items()} == {name: locked[name] for name in rows()}
    assert {name for name in licence_table.ASKED if name in locked} <= rows().keys()


def test_licences_and_sizes_are_those_of_the_packages_that_are_installed_here():
    compared = 0
    for name, package in licence_table.added().items():
        if name in rows() and package.version == rows()[name][0]:
            _, licence, size = rows()[name]
            assert licence == licence_table.licence(package), name
            # Another Python or machine has other compiled files.
            assert abs(size - licence_table.megabytes(package)) <= 0.1 + 0.3 * size, name
            compared += 1
    assert compared > 0
