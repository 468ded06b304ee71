"""A stop reaches the training wherever it runs below a rank, each process once."""

from __future__ import annotations

from algorun.control.member.stop_order import WRAPPER_S, Seen, StopOrder

RANK = 10


def process(pid, parent=RANK, **facts):
    return Seen(pid, parent, born=pid * 100, **facts)


def test_a_training_that_handles_the_signal_is_told_once_and_nothing_below_it():
    """Workers of its DataLoader must live until it has saved."""
    order = StopOrder(RANK)
    seen = [process(RANK, 1, handles=True), process(11), process(12, handles=True, is_loader=True)]
    assert order.next(0, seen) == [RANK]
    assert order.next(1, seen) == []
    assert order.next(99, [*seen, process(13)]) == []
    assert order.some_handled


def test_below_a_wrapper_the_training_is_told_and_the_wrapper_is_not():
    order = StopOrder(RANK)
    seen = [process(RANK, 1), process(11), process(12, 11, handles=True)]
    assert order.next(0, seen) == [12]
    assert order.next(60, seen) == []
    # It has saved and left: whoever waited for it may go on for a moment, and is told then.
    assert order.next(61, seen[:2]) == []
    assert order.next(61 + WRAPPER_S, seen[:2]) == [RANK]
    assert order.next(99, seen[1:2]) == [11]  # an orphan now


def test_a_training_that_handles_nothing_is_told_at_once():
    order = StopOrder(RANK)
    seen = [process(RANK, 1), process(11, handles=True, is_loader=True)]
    assert order.next(0, seen) == [RANK]
    assert not order.some_handled
    assert order.next(1, seen) == []


def test_below_a_shell_all_are_told_but_who_reads_what_another_writes():
    """`python train.py | tee log`: tee ends with its input. It must not end before the last line."""
    order = StopOrder(RANK)
    tee = process(12, reads="pipe:[7]")
    seen = [process(RANK, 1, is_shell=True), process(11, writes=("pipe:[7]",)), tee]
    assert set(order.next(0, seen)) == {RANK, 11}
    assert order.next(1, [tee]) == [12]  # its writer has ended, and it goes on


def test_a_pipe_into_a_training_leaves_it_the_one_that_is_told():
    order = StopOrder(RANK)
    seen = [
        process(RANK, 1, is_shell=True),
        process(11, writes=("pipe:[7]",)),
        process(12, handles=True, reads="pipe:[7]"),
    ]
    assert order.next(0, seen) == [12, RANK]


def test_a_shell_ends_with_the_stop_and_starts_nothing_more():
    """`while true; do python train.py; done`: it would begin the training again until the grace is over."""
    order = StopOrder(RANK)
    seen = [process(RANK, 1), process(11, is_shell=True), process(12, 11), process(13, 12, handles=True)]
    assert order.next(0, seen) == [13, 11]
    assert order.next(1, seen) == []


def test_a_shell_that_reads_the_output_of_the_training_outlives_it():
    """`x=$(python train.py)`"""
    order = StopOrder(RANK)
    shell = process(RANK, 1, is_shell=True, holds=("pipe:[7]",))
    assert order.next(0, [shell, process(11, handles=True, writes=("pipe:[7]",))]) == [11]
    assert order.next(1, [shell]) == []
    assert order.next(1 + WRAPPER_S, [shell]) == [RANK]


def test_what_begins_after_the_stop_is_told_too():
    order = StopOrder(RANK)
    wrapper = process(RANK, 1)
    assert order.next(0, [wrapper, process(11, handles=True)]) == [11]
    assert order.next(5, [wrapper, process(12, handles=True)]) == [12]
    assert order.next(6, [wrapper, process(13)]) == []
    assert order.next(6 + WRAPPER_S, [wrapper, process(13)]) == [RANK]


def test_who_ignores_the_signal_is_not_told_and_its_children_are():
    order = StopOrder(RANK)
    assert order.next(0, [process(RANK, 1, ignores=True), process(11, handles=True)]) == [11]
    assert StopOrder(RANK).next(0, [process(RANK, 1, ignores=True)]) == []


def test_a_process_that_lost_its_parent_is_still_the_rank_s():
    """A shell that has ended: the supervisor is now the parent of what it had started."""
    order = StopOrder(RANK)
    assert order.next(0, [process(RANK, 1, is_shell=True), process(11, handles=True), process(14, 11)]) == [11, RANK]
    assert order.next(1, [process(14, 1)]) == []
    assert order.next(1 + WRAPPER_S, [process(14, 1)]) == [14]


def test_another_process_with_the_number_of_a_former_one_is_a_stranger():
    order = StopOrder(RANK)
    order.next(0, [process(RANK, 1), process(11)])
    assert order.next(9, [Seen(11, 1, born=999_999, handles=True)]) == []


def test_all_processes_of_a_spawned_training_are_told():
    order = StopOrder(RANK)
    seen = [process(RANK, 1), *(process(pid, handles=True) for pid in (11, 12, 13)), process(14)]
    assert set(order.next(0, seen)) == {11, 12, 13}
