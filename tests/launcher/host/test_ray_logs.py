"""Ray's output: lines of workers, and log files that are kept. The texts are those of Ray 2.60.0."""

from __future__ import annotations

import pytest

from algorun.host.engines.ray import logs as ray_logs


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"(f pid=15365, ip=10.0.0.2) task 2\n", b"(f pid=15365, algo-2) task 2\n"),
        (b"\x1b[36m(Holder pid=1, ip=10.0.0.9)\x1b[0m \x1b[31mred\x1b[0m\n", b"(Holder pid=1, 10.0.0.9) \x1b[31mred\x1b[0m\n"),
        (b"(f pid=15365) here\n", b"(f pid=15365) here\n"),
        (b"see (f pid=1, ip=10.0.0.2) in a line of its own\n", b"see (f pid=1, ip=10.0.0.2) in a line of its own\n"),
        (b"x\n(f pid=3, ip=10.0.0.2) y\x1b[32m [repeated 3x across cluster] (Ray ..)\x1b[0m\n",
         b"x\n(f pid=3, algo-2) y [repeated 3x across cluster] (Ray ..)\n"),
    ],
)  # fmt: skip
def test_lines_of_workers_name_their_host(line, shown):
    assert ray_logs.with_hosts({"10.0.0.1": "algo-1", "10.0.0.2": "algo-2"})(line) == shown


def test_the_ends_of_the_newest_files_are_kept(tmp_path):
    logs = tmp_path / "r0" / "session_2026-11-25_02-30-27_095833_14503" / "logs"
    (logs / "old").mkdir(parents=True)
    (logs / "raylet.out").write_bytes(b"begin" + b"x" * ray_logs.MOST_BYTES)
    (logs / "raylet.err").touch()
    (logs / "debug_state.txt").write_text("state")
    ray_logs.keep(tmp_path / "r0", tmp_path / "kept")
    assert {each.name: each.stat().st_size for each in (tmp_path / "kept").iterdir()} == {
        "raylet.out": ray_logs.MOST_BYTES
    }
    ray_logs.keep(tmp_path / "nothing", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_driver_that_has_connected_has_a_log_of_its_own(tmp_path):
    logs = tmp_path / "session_2026-11-25_06-57-39_270974_12" / "logs"
    assert not ray_logs.driver_connected(tmp_path / "nothing")
    logs.mkdir(parents=True)
    (logs / "raylet.out").touch()
    assert not ray_logs.driver_connected(tmp_path)
    (logs / "python-core-driver-01000000ffffffff_7.log").touch()
    assert ray_logs.driver_connected(tmp_path)
