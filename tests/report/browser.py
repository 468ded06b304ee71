"""A headless Chromium on a page: what it shows, what it complains about, how long it takes.

Chromium's DevTools protocol over two pipes: JSON, each message ended by a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH (apt-get install chromium)")
LONGEST_S = 30.0


class Browser:
    """One tab. Every call waits for its answer, at most LONGEST_S."""

    def __init__(self, home: Path) -> None:
        assert CHROMIUM
        own_out, its_in = os.pipe()[::-1]
        its_out, own_in = os.pipe()[::-1]
        self._out, self._in, self._ids, self._rest = own_out, own_in, 0, b""
        self.events: list[dict[str, Any]] = []
        # It reads from descriptor 3 and writes to 4.
        shell = 'exec 5<&"$1" 6>&"$2" 3<&5 4>&6 5<&- 6>&-; shift 2; exec "$@"'
        words = (
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            "--no-first-run",
        )
        more = ("--disable-background-networking", "--disable-dev-shm-usage", f"--user-data-dir={home}", "about:blank")
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", str(its_in), str(its_out), *words, *more],
            pass_fds=(its_in, its_out),
            env={**os.environ, "TMPDIR": str(home)},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(its_in)
        os.close(its_out)
        self._session: dict[str, str] = {}
        target = next(each for each in self._call("Target.getTargets")["targetInfos"] if each["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        os.close(self._out)
        os.close(self._in)

    def look(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """The window, before a page is opened."""
        phone = width < 600  # its scrollbar lies over the page
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", features=features)

    def open(self, path: Path) -> float:
        """Opens a page, and returns the seconds until it was loaded and its scripts had run."""
        begin = time.monotonic()
        self.go(path.resolve().as_uri())
        self.value("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")  # it is on the screen
        return time.monotonic() - begin

    def go(self, address: str) -> None:
        """Opens an address, and waits until its page is loaded."""
        self.events.clear()
        end = time.monotonic() + LONGEST_S
        self._call("Page.navigate", url=address)
        while not any(each["method"] == "Page.loadEventFired" for each in self.events):
            self._read(end)

    def value(self, expression: str) -> Any:
        """What a line of JavaScript returns."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def becomes(self, expression: str, value: object) -> bool:
        """Waits until a line of JavaScript returns `value`. False if it does not in time."""
        end = time.monotonic() + LONGEST_S
        while self.value(expression) != value:
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def complaints(self) -> list[str]:
        """Errors of scripts, and what the page's policy has refused."""
        errors = [
            each["params"]["exceptionDetails"] for each in self.events if each["method"] == "Runtime.exceptionThrown"
        ]
        entries = [each["params"]["entry"]["text"] for each in self.events if each["method"] == "Log.entryAdded"]
        return [json.dumps(each) for each in errors] + entries

    def requested(self) -> list[str]:
        """The addresses that the page has asked for, its own first."""
        asked = [each for each in self.events if each["method"] == "Network.requestWillBeSent"]
        return [each["params"]["request"]["url"] for each in asked]

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """A picture of the window, or of all that can be scrolled to."""
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._ids += 1
        message = {"id": self._ids, "method": method, "params": parameters, **getattr(self, "_session", {})}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + LONGEST_S
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self._ids:
                assert "error" not in answer, (method, answer)
                return answer["result"]

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "chromium does not answer"
            piece = os.read(self._in, 1 << 20)
            assert piece, "chromium has ended"
            self._rest += piece
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message
