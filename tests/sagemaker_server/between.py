"""A proxy between a client and the server: it counts the requests, and does something at one of them.

Whatever a client changes outside of its own machine it changes by a request. So the moments at which a client may die
differ only in how many of its requests have been carried out: killing it at each request is killing it at any moment.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

HOST = "127.0.0.1"
ANSWER_S = 60.0
OF_THE_CONNECTION = ("connection", "transfer-encoding", "content-length", "keep-alive")


@dataclass(frozen=True, slots=True)
class Seen:
    """A request: `PUT s3 /b-ucket/key` or `POST sagemaker CreateTrainingJob`."""

    method: str
    service: str
    what: str  # the operation, for S3 the path with its query

    def __str__(self) -> str:
        return f"{self.method} {self.service} {self.what}"


Chosen = Callable[[Seen, int], bool]
NONE: Chosen = lambda each, number: False  # noqa: E731


@dataclass(frozen=True, slots=True)
class Answer:
    """The server's."""

    status: int
    headers: list[tuple[str, str]]
    content: bytes


@dataclass(slots=True)
class Between:
    """What was seen, and what is to be done at one of the requests."""

    urls: dict[str, str]  # service -> where it is
    seen: list[Seen] = field(default_factory=list)
    _chosen: Chosen = NONE
    _act: Callable[[], None] = lambda: None
    _done: bool = True
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, chosen: Chosen = NONE, act: Callable[[], None] = lambda: None, *, done: bool = True) -> None:
        """Forgets what was seen. At the first request that is chosen, `act` is called, and its answer is lost.

        `chosen`: gets a request and its number, from 1. `done`: the request is carried out first, else it is lost too.
        """
        with self._lock:
            self.seen, self._chosen, self._act, self._done = [], chosen, act, done

    def carry_out(self, each: Seen, call: Callable[[], Answer]) -> Answer | None:
        """The answer of a request; None if there is none."""
        with self._lock:
            self.seen.append(each)
            chosen = self._chosen(each, len(self.seen))
            if chosen:
                self._chosen = NONE
        answer = call() if self._done or not chosen else None
        if not chosen:
            return answer
        self._act()
        return None

    def environ(self) -> dict[str, str]:
        """Variables that send boto3 here, one address for each service."""
        return {f"AWS_ENDPOINT_URL_{name}": self.urls[f"between {name}"] for name in self.urls if " " not in name} | {
            "AWS_ENDPOINT_URL": self.urls["between S3"]
        }


def _handler(between: Between, service: str) -> type[BaseHTTPRequestHandler]:
    target = urlsplit(between.urls[service])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            with contextlib.suppress(ConnectionError):  # of a client that was killed
                super().handle_one_request()

        def _forward(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            if len(body) < length:  # its client was killed while it sent this: S3 keeps no object of an incomplete body
                self.close_connection = True
                return
            operation = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
            name = operation or (self.path if service == "S3" else body.decode().partition("&")[0])
            headers = {key: value for key, value in self.headers.items() if key.lower() not in OF_THE_CONNECTION}
            headers["Content-Length"] = str(len(body))
            seen = Seen(self.command, service.lower(), name)
            answer = between.carry_out(seen, lambda: _asked(target.netloc, self.command, self.path, body, headers))
            if answer is None:
                self.close_connection = True
            else:
                self._pass_on(answer)

        def _pass_on(self, answer: Answer) -> None:
            length = str(len(answer.content))
            self.send_response_only(answer.status)
            for key, value in answer.headers:
                if key.lower() not in OF_THE_CONNECTION:
                    self.send_header(key, value)
                elif key.lower() == "content-length" and self.command == "HEAD":
                    length = value
            self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _forward

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def _asked(place: str, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
    connection = http.client.HTTPConnection(place, timeout=ANSWER_S)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return Answer(answer.status, answer.getheaders(), answer.read())
    finally:
        connection.close()


@contextlib.contextmanager
def between(urls: dict[str, str]) -> Iterator[Between]:
    """Runs the proxy. `urls`: service as in AWS_ENDPOINT_URL_SERVICE -> its server."""
    made = Between(dict(urls))
    servers = []
    for service in urls:
        server = ThreadingHTTPServer((HOST, 0), _handler(made, service))
        server.daemon_threads = True
        made.urls[f"between {service}"] = f"http://{HOST}:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
    try:
        yield made
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
