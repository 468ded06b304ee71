"""Metrics after a resumption: nothing twice, nothing that the run has not kept."""

import json

import pytest

from algorun_train.loop.progress import Position
from algorun_train.loop.sinks import JSONL, Sinks

LINES = [
    {"kind": "step", "epoch": 1, "step": 4},
    {"kind": "step", "epoch": 1, "step": 8},
    {"kind": "epoch", "epoch": 1, "step": 8},
    {"kind": "step", "epoch": 2, "step": 9},
    {"kind": "step", "epoch": 2, "step": 16},
    {"kind": "epoch", "epoch": 2, "step": 16},
]


@pytest.mark.parametrize(
    ("start", "kept"),
    [
        (Position(0, 0, 0), 0),
        (Position(0, 40, 4), 1),
        (Position(0, 80, 8), 2),  # the epoch's evaluation is still to come
        (Position(1, 0, 8), 3),
        (Position(1, 10, 9), 4),
        (Position(1, 80, 16), 5),
        (Position(2, 0, 16), 6),
    ],
)
def test_reports_of_what_comes_again_are_dropped_and_damaged_ones(tmp_path, start, kept):
    file = tmp_path / JSONL
    damaged = (b"[" * 100_000, b"\xff", b"[]", b'{"kind": "step", "step": "9"}')
    lines = [json.dumps(line).encode() for line in LINES]
    file.write_bytes(b"".join(line + b"\n" for line in (*damaged, *lines)) + b'{"kind": "st')
    Sinks(tmp_path, start).close()
    assert [json.loads(line) for line in file.read_text().splitlines()] == LINES[:kept]


def test_events_go_where_s3_follows(tmp_path, monkeypatch):
    monkeypatch.setenv("ALGORUN_TENSORBOARD_DIR", str(tmp_path / "live"))
    (tmp_path / "data").mkdir()
    Sinks(tmp_path / "data", Position(0, 0, 0)).close()
    assert [path.name[:6] for path in (tmp_path / "live").iterdir()] == ["events"]
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["metrics.jsonl"]
