"""What all tests of the client share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def service_models() -> Iterator[None]:
    """botocore's descriptions of AWS's services are read once; each session would decode 0.2 s of JSON, and changes none."""
    try:
        from botocore import loaders
    except ImportError:  # tests that need it are skipped
        yield
        return
    read, found = loaders.JSONFileLoader.load_file, dict[str, Any]()

    def load_file(loader: Any, path: str) -> Any:
        if (known := found.get(path)) is None:
            known = read(loader, path)
            if known is not None:  # else there is no such file
                found[path] = known
        return known

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loaders.JSONFileLoader, "load_file", load_file)
        yield
