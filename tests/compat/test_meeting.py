"""A meeting of one rank, which needs no process group; tests/compat has meetings of several."""

from __future__ import annotations

import pytest
import torch

from algorun_smdistributed.ranks.meeting import RankMeeting
from algorun_train.common.errors import UserError

ALONE = RankMeeting(3, [3])


def test_a_rank_alone_gets_a_copy_of_its_own():
    value = {"weights": torch.arange(3), "text": "x"}
    (found,) = ALONE.gathered(value, "a call")
    assert torch.equal(found["weights"], value["weights"])
    assert found["weights"].data_ptr() != value["weights"].data_ptr()
    assert ALONE.together("a call", b"data") == [b"data"]


def test_a_value_that_cannot_be_pickled_is_named_with_the_call():
    with pytest.raises(
        UserError, match=r"^a call: an object of type generator cannot be sent: .*; fix: send its data$"
    ):
        ALONE.gathered((n for n in "ab"), "a call")


def test_work_on_all_gives_results_and_errors_as_they_are():
    def breaks():
        raise KeyError("own")

    def refuses():
        raise UserError("refused")

    assert ALONE.on_all(lambda: 5, "a call") == [5]
    with pytest.raises(KeyError, match="own"):
        ALONE.on_all(breaks, "a call")
    with pytest.raises(UserError, match="^refused$"):
        ALONE.on_all(refuses, "a call")
