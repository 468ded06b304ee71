"""What a page holds, for tests that read it."""

from __future__ import annotations

import json
import re
from typing import Any


def data(page: str) -> dict[str, Any]:
    """The data of the page's charts."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def chart(page: str, title: str) -> dict[str, Any]:
    """The data of one chart."""
    return next(each for each in data(page)["charts"] if each["title"] == title)
