"""The event loop: what is forgotten is not called any more."""

from __future__ import annotations

import socket

from algorun.common.event_loop import READ, Loop


def test_a_callback_that_forgets_another_one_of_the_same_round_is_the_last():
    """Both are ready at once. A connection that another one replaces is closed so: its own event would find it closed."""
    loop, called = Loop(), []
    pairs = [socket.socketpair() for _ in range(2)]
    for number, (near, far) in enumerate(pairs):
        far.sendall(b"x")

        def call(_: int, number: int = number, other: socket.socket = pairs[1 - number][0]) -> None:
            called.append(number)
            loop.forget(other)
            loop.stop()

        loop.watch(near, READ, call)
    loop.run()
    assert len(called) == 1
    for end in (*pairs[0], *pairs[1]):
        end.close()
    loop.close()


def test_a_callback_that_another_one_of_the_same_round_replaces_is_not_called():
    loop, called = Loop(), []
    pairs = [socket.socketpair() for _ in range(2)]
    for near, far in pairs:
        far.sendall(b"x")

        def call(_: int, near: socket.socket = near) -> None:
            called.append("first")
            for other, _ in pairs:
                if other is not near:
                    loop.watch(other, READ, lambda _: (called.append("replaced"), loop.stop()))

        loop.watch(near, READ, call)
    loop.run()
    assert called == ["first", "replaced"]
    for end in (*pairs[0], *pairs[1]):
        end.close()
    loop.close()
