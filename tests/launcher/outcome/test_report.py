"""What a host leaves behind: output/failure by the script and by the launcher, and the room that is kept for it."""

from __future__ import annotations

import os

import pytest

from algorun.control.failures.failure import SHOWN, Failure
from algorun.control.wire.messages import Verdict
from algorun.job.paths import RESERVED, Paths, reserved
from algorun.outcome import report

FAILURE = Failure("exit", "algo-1", 255, "no message on stderr", rank=0)
FAILED = Verdict("failed", 255, FAILURE)


@pytest.fixture
def paths(tmp_path):
    found = Paths(tmp_path / "ml")
    report.begin(found, "algo-1")
    return found


def names(paths: Paths) -> set[str]:
    return set(os.listdir(paths.output))


def test_room_is_kept_from_the_start_in_real_blocks(paths):
    status = reserved(paths.failure).stat()
    assert status.st_size == RESERVED
    assert status.st_blocks * 512 >= RESERVED
    assert RESERVED >= 4 * SHOWN
    assert not paths.output_data.exists(), "what is uploaded as output does not hold it"


@pytest.mark.parametrize("verdict", [Verdict("ok", 0), Verdict("stopped", 0, None, "SIGTERM"), FAILED])
def test_nothing_of_the_room_is_left_at_the_end(verdict, paths):
    assert report.write(paths, verdict) == ""
    assert names(paths) == ({"failure", "data"} if verdict.code else {"success"})


def test_the_room_becomes_the_failure(paths):
    inode = reserved(paths.failure).stat().st_ino
    report.write(paths, FAILED)
    assert paths.failure.stat().st_ino == inode
    assert paths.failure.read_text() == FAILURE.text() + "\n"


@pytest.mark.parametrize("change", ["gone", "folder", "link", "pipe"])
def test_a_room_that_a_script_has_taken_away_is_not_needed(change, paths, tmp_path):
    other = tmp_path / "other"
    other.write_text("mine")
    reserved(paths.failure).unlink()
    if change == "folder":
        reserved(paths.failure).mkdir()
    if change == "link":
        reserved(paths.failure).symlink_to(other)
    if change == "pipe":
        os.mkfifo(reserved(paths.failure))
    report.write(paths, FAILED)
    assert paths.failure.read_text() == FAILURE.text() + "\n"
    assert other.read_text() == "mine"


def test_a_run_that_was_killed_leaves_nothing_for_the_next(paths):
    paths.failure.write_text("of the run before")
    paths.output_data.mkdir()
    for path in (paths.host_figures("algo-1"), paths.step_trace("algo-1", "1"), paths.step_trace("algo-1", "2")):
        path.write_text("of the run before")
    others = paths.step_trace("algo-11", "1")
    others.write_text("of another host, whose folder this may be as well")
    report.begin(paths, "algo-1")
    assert names(paths) == {reserved(paths.failure).name, "data"}
    assert list(paths.output_data.iterdir()) == [others]


def test_a_text_of_four_byte_characters_fits_the_room(paths):
    strange = Failure("exit", "algo-1", 255, "\U0001f600" * 2000, rank=0)
    report.write(paths, Verdict("failed", 255, strange))
    assert paths.failure.stat().st_size <= RESERVED
    assert len(paths.failure.read_text()) <= SHOWN


def test_what_the_script_said_is_read_as_text(paths):
    assert report.user_failure_text(paths) == ""
    paths.failure.write_bytes(b"\x1b[31mTraining failed\x1b[0m:\r\n\tno \xff data\0\x07\n\n")
    assert report.user_failure_text(paths) == "Training failed:\n\tno � data"
    paths.failure.write_text("x" * 100_000)
    assert report.user_failure_text(paths) == "x" * report.LONGEST_USER_TEXT


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_what_is_no_file_says_nothing(kind, paths, tmp_path):
    if kind == "folder":
        paths.failure.mkdir()
    if kind == "link":
        (tmp_path / "secret").write_text("secret")
        paths.failure.symlink_to(tmp_path / "secret")
    if kind == "pipe":
        os.mkfifo(paths.failure)
    assert report.user_failure_text(paths) == ""


def test_what_another_host_said_does_not_lose_what_this_one_did(paths):
    said = Failure("exit", "algo-2", 255, "no message on stderr", rank=1, user_text="theirs")
    report.write(paths, Verdict("failed", 255, said), "ours")
    assert paths.failure.read_text().startswith("theirs\nexit: rank 1 on algo-2, exit 255")
    full = (paths.output_data / "failure-full.txt").read_text()
    assert full.startswith("theirs\n")
    assert full.endswith("output/failure as this host's program wrote it:\nours\n")
