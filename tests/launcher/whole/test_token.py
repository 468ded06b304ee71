"""ALGORUN_TOKEN reaches nobody but the launcher's own process of each host."""

from __future__ import annotations

import uuid

import pytest

from tests.conftest import ENGINES

from .running import PROGRAMS
from .supervisors import by_hand


@pytest.mark.slow(but=["native"])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_token_is_in_no_rank_s_daemon_s_or_helper_s_environment(engine, tmp_path, nothing_left):
    token = uuid.uuid4().hex
    (tmp_path / "token").write_text(token)
    program = [PROGRAMS / "token_holders.py", tmp_path / "token", "1.5"]
    codes, outs, _ = by_hand(
        tmp_path, nothing_left, [program, program], ALGORUN_TOKEN=token, ALGORUN_ENGINE=engine, ALGORUN_SLOTS="1"
    )
    assert codes == [0, 0], outs
    text = "".join(outs.values())
    assert text.count("mine: None") == 2
    holders = [line.partition("holder: ")[2] for line in text.splitlines() if "holder: " in line]
    assert holders, "the launcher's own"
    assert [each for each in holders if " -m algorun run " not in each] == []
    assert token not in text
