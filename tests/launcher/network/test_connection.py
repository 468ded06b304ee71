"""Lines over one socket."""

from __future__ import annotations

import socket

from algorun.common.event_loop import Loop
from algorun.control.wire.messages import Stop
from algorun.network.connection import Connection


def test_a_connection_that_closes_still_writes_but_hears_nothing_more():
    loop, heard = Loop(), []
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        near = socket.create_connection(listener.getsockname(), timeout=10)
        far, _ = listener.accept()
    with near:

        def hear(line: bytes) -> None:
            heard.append(line)
            for _ in range(100):  # more than the kernel takes, so that it is still open after `close`
                connection.send(Stop("x" * 30_000))
            connection.close()

        connection = Connection(loop, far, hear, heard.append)
        near.sendall(b"one\ntwo\n")
        while not heard:
            loop.post(loop.stop)
            loop.run()
        assert heard == [b"one"]
        connection.flush(0.0)
    loop.close()
