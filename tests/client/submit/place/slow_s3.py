"""A bucket at the end of a slow line: it takes bodies by drops, or never answers them."""

from __future__ import annotations

import contextlib
import fcntl
import struct
import termios
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DROP = 16 * 1024  # bytes
PAUSE_S = 0.2
STILL_S = 0.2  # without a further byte: buffers are full


class SlowS3(ThreadingHTTPServer):
    """Notes each request as `METHOD KEY?QUERY`. `deaf`: bodies are not read at all."""

    daemon_threads = True

    def __init__(self, *, deaf: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.deaf, self.seen, self.bodies = deaf, list[str](), 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @contextlib.contextmanager
    def running(self) -> Iterator[SlowS3]:
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: SlowS3
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self._note()
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(200, b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>")

    def do_PUT(self) -> None:
        self._note()
        if self.headers.get("Expect"):
            self.send_response_only(100)
            self.end_headers()
        if self.server.deaf:
            self._wait_until_full()
        self.server.bodies += 1
        while self.server.deaf:
            time.sleep(1)
        with contextlib.suppress(ConnectionError):  # the client is gone
            while self.rfile.read1(DROP):
                time.sleep(PAUSE_S)
        self.close_connection = True

    def do_HEAD(self) -> None:
        self._answer(404)

    def do_GET(self) -> None:
        self._answer(200, b"<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>")

    def do_DELETE(self) -> None:
        self._note()
        self._answer(204)

    def _wait_until_full(self) -> None:
        """Until the client sends no more: its call waits for us, and ends by nothing that it reads."""
        before, now = -1, 0
        while now != before or not now:
            before = now
            time.sleep(STILL_S)
            now = struct.unpack("i", fcntl.ioctl(self.connection, termios.FIONREAD, bytes(4)))[0]

    def _note(self) -> None:
        self.server.seen.append(f"{self.command} {self.path}")

    def _answer(self, code: int, content: bytes = b"") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass
