"""Numbers of bytes, for people."""

from __future__ import annotations

import pytest

from algorun.common.sizes import size_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_999, "1.0 MB"),
        (1_500_000, "1.5 MB"),
        (5 * 10**13, "50.0 TB"),
        (10**16, "10000.0 TB"),
    ],
)
def test_sizes(size, text):
    assert size_text(size) == text
