"""Hosts whose files list the job's hosts in different orders: all are told at once."""

from __future__ import annotations

import time

import pytest

from tests.ports import own_port

from .running import PROGRAMS
from .supervisors import started


def orders(*each):
    """Lists of hosts by their last digits, for algo-1, algo-2 and so on."""
    return [[f"algo-{digit}" for digit in digits] for digits in each]


def ordered(tmp_path, marker, lists, delays, **environ):
    """Hosts whose files list these orders: their codes, the different texts of their failures, and the seconds."""
    port, began, children = str(own_port()), time.monotonic(), {}
    addresses = ",".join(f"algo-{number}=127.0.0.{number}" for number in range(1, 4))
    for delay, number in sorted(zip(delays, range(1, len(lists) + 1), strict=True)):
        time.sleep(max(0.0, began + delay - time.monotonic()))
        children[number] = started(
            tmp_path, marker, f"algo-{number}", lists[number - 1], [PROGRAMS / "faulty.py", "a"],
            ALGORUN_ADDRESSES=addresses, ALGORUN_CONTROL_PORT=port, **environ,
        )  # fmt: skip
    for child in children.values():
        child.communicate(timeout=60)
    texts = {(tmp_path / f"algo-{number}" / "output" / "failure").read_text() for number in children}
    return [children[number].returncode for number in sorted(children)], texts, time.monotonic() - began


# The same code with another value or at another moment.
@pytest.mark.slow(but=["12,21-address", "123,213,312-token"])
@pytest.mark.parametrize("environ", [{}, {"ALGORUN_TOKEN": "t"}], ids=["address", "token"])
@pytest.mark.parametrize(
    ("lists", "differs"),
    [
        (orders("12", "21"), {"algo-1,algo-2 on algo-1, algo-2,algo-1 on algo-2"}),
        (orders("123", "123", "312"), {"algo-1,algo-2,algo-3 on algo-1, algo-3,algo-1,algo-2 on algo-3"}),
        (orders("123", "312", "312"), {"algo-1,algo-2,algo-3 on algo-1, algo-3,algo-1,algo-2 on algo-3"}),
        (orders("213", "213", "312"), {"algo-2,algo-1,algo-3 on algo-2, algo-3,algo-1,algo-2 on algo-3"}),
        (orders("123", "213", "312"), {  # whichever comes first
            "algo-1,algo-2,algo-3 on algo-1, algo-2,algo-1,algo-3 on algo-2",
            "algo-1,algo-2,algo-3 on algo-1, algo-3,algo-1,algo-2 on algo-3",
            "algo-2,algo-1,algo-3 on algo-2, algo-3,algo-1,algo-2 on algo-3",
        }),
    ],
    ids=["12,21", "123,123,312", "123,312,312", "213,213,312", "123,213,312"],
)  # fmt: skip
def test_files_that_list_different_orders_are_told_at_once(lists, differs, environ, tmp_path, nothing_left):
    codes, texts, seconds = ordered(tmp_path, nothing_left, lists, [0.0] * len(lists), **environ)
    assert codes == [64] * len(lists), texts
    assert len(texts) == 1, texts
    assert texts.pop().partition("hosts differs: ")[2].strip() in differs
    assert seconds < 40  # 1.5 s to the first look, and not the 600 s of the gate


# Waits for a documented time to pass; launcher/control/test_gate.py and test_rivals.py have a clock of their own.
@pytest.mark.slow
def test_a_late_follower_of_a_leader_that_does_not_judge_hears_of_it_too(tmp_path, nothing_left):
    """algo-1 and algo-3 have ended the job when the host comes that algo-3 would have led."""
    codes, texts, _ = ordered(tmp_path, nothing_left, orders("123", "321", "321"), [0.0, 4.0, 0.0], ALGORUN_GATE_S="30")
    assert codes == [64] * 3, texts
    assert len(texts) == 1, texts
