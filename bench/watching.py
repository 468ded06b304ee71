"""A server in front of the test server: it notes when CreateTrainingJob comes, and what the client has used by then."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.sagemaker_server.server_process import ServerProcess

HERTZ = os.sysconf("SC_CLK_TCK")
PASSED_ON = ("X-Amz-Target", "Content-Type", "Authorization", "X-Amz-Date")
ELSEWHERE = "SageMaker.Search"  # simple-sagemaker's question for earlier jobs; only moto answers it
ANSWER_S = 60.0


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(each) for each in fields[11:15]) / HERTZ


class Watch:
    """What has been seen of the client of this turn."""

    def __init__(self) -> None:
        self.pid = 0
        self.came = threading.Event()
        self.answered = threading.Event()  # the job exists
        self.at = self.cpu_s = 0.0

    def begin(self, pid: int) -> None:
        """From here on the client is the process `pid`."""
        self.pid = pid
        self.came.clear()
        self.answered.clear()

    def created(self) -> None:
        """A CreateTrainingJob came."""
        if not self.came.is_set():
            self.at, self.cpu_s = time.time(), cpu_s(self.pid)
            self.came.set()


@contextlib.contextmanager
def in_front(server: ServerProcess, watch: Watch) -> Iterator[str]:
    """The address of a server that passes everything on."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    class Front(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            target = self.headers.get("X-Amz-Target", "")
            creates = target == "SageMaker.CreateTrainingJob"
            if creates:
                watch.created()
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            url = server.moto_url if target == ELSEWHERE else server.url
            headers = {name: self.headers[name] for name in PASSED_ON if name in self.headers}
            try:
                with opener.open(urllib.request.Request(url, content, headers), timeout=ANSWER_S) as answer:
                    self.reply(answer.status, answer.read())
            except urllib.error.HTTPError as error:
                self.reply(error.code, error.read())
            if creates:
                watch.answered.set()

        def reply(self, status: int, content: bytes) -> None:
            with contextlib.suppress(OSError):  # the client was ended
                self.send_response(status)
                self.send_header("Content-Type", "application/x-amz-json-1.1")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Not on stderr."""

    front = ThreadingHTTPServer(("127.0.0.1", 0), Front)
    thread = threading.Thread(target=front.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{front.server_port}"
    finally:
        front.shutdown()
        front.server_close()
