"""A folder that takes the place of another, and links in that place."""

from __future__ import annotations

import pytest

from algorun.common.errors import UserError
from algorun_client.fetch.in_place import put_in_place, refuse_link


@pytest.mark.parametrize("target", ["outside", "absent"])
def test_a_link_is_replaced_and_not_followed(tmp_path, target):
    made, aside, outside = tmp_path / "made", tmp_path / "aside", tmp_path / "outside"
    for each in (made, aside, outside):
        each.mkdir()
    (made / "new").touch()
    (outside / "kept").touch()
    folder = tmp_path / "model"
    folder.symlink_to(tmp_path / target)
    put_in_place(made, folder, aside)
    assert not folder.is_symlink()
    assert [each.name for each in folder.iterdir()] == ["new"]
    assert [each.name for each in outside.iterdir()] == ["kept"]


def test_a_link_in_the_place_of_a_folder_that_stays_is_refused(tmp_path):
    (tmp_path / "state").symlink_to(tmp_path)
    with pytest.raises(
        UserError, match="state: is a link to .*, and nothing is written through it; fix: remove the link"
    ):
        refuse_link(tmp_path / "state")
    refuse_link(tmp_path)
    refuse_link(tmp_path / "absent")
