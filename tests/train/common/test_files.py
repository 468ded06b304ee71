"""Files that appear complete or not at all."""

from __future__ import annotations

import pytest

from algorun_train.common.files import aside


def test_a_file_gets_its_name_once_its_content_is_known(tmp_path):
    parts = []
    with aside(tmp_path / ".new", lambda: tmp_path / "-".join(parts)) as file:
        for part in ("a", "b"):
            parts.append(part)
            file.write(part.encode())
        assert [path.name for path in tmp_path.iterdir()] == [".new"]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a-b": "ab"}


@pytest.mark.parametrize("where", ["content", "name"])
def test_an_error_leaves_the_file_of_before(tmp_path, where):
    (tmp_path / "kept").write_text("old")

    def name():
        assert where == "content", "no name"
        return tmp_path / "kept"

    with pytest.raises(AssertionError), aside(tmp_path / ".new", name) as file:  # noqa: PT012
        file.write(b"new")
        assert where == "name", "no content"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"kept": "old"}
