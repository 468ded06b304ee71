"""Supervisors that meet at the gate, or do not: who is late, who differs, and what all are told."""

from __future__ import annotations

import re
from functools import partial

import pytest

from .running import PROGRAMS
from .supervisors import by_hand


def test_a_mismatch_does_not_tell_secrets(tmp_path, nothing_left):
    programs = [[PROGRAMS / "faulty.py", mode, "--api-key", f"hunter{mode}"] for mode in "ab"]
    codes, outs, _ = by_hand(tmp_path, nothing_left, programs)
    assert codes == [64, 64]
    assert "hunter" not in "".join(outs.values()) + (tmp_path / "algo-1" / "output" / "failure").read_text()


def test_a_late_follower_hears_of_an_error_of_the_leader(tmp_path, nothing_left):
    codes, outs, _ = by_hand(tmp_path, nothing_left, [[tmp_path / "absent.py"], [PROGRAMS / "faulty.py"]], (0, 1))
    assert codes == [64, 64], outs
    assert "absent.py" in (tmp_path / "algo-2" / "output" / "failure").read_text()


def untold(folder, marker):
    codes, outs, _ = by_hand(folder, marker, [None, [folder / "absent.py"]], ALGORUN_LEAVE_S="1")
    return codes, outs, (folder / "algo-2" / "output" / "failure").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("begun", [untold], indirect=True)
def test_an_error_that_nobody_could_be_told_is_still_in_failure(begun):
    codes, outs, failure = begun
    assert codes == [64], outs
    assert "absent.py" in failure


def test_different_slots_make_consecutive_ranks(tmp_path, nothing_left):
    program = tmp_path / "places.py"
    program.write_text(
        "import os\n"
        "names = ('RANK', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT')\n"
        "print('place', *(os.environ[name] for name in names), flush=True)\n"
    )
    codes, outs, _ = by_hand(tmp_path, nothing_left, [["--slots", "2", program], ["--slots", "1", program]])
    assert codes == [0, 0], outs
    found = sorted(re.findall(r"\[(\d) (algo-\d)\] place (.*)", "".join(outs.values())))
    (met,) = {tuple(place.split()[4:]) for _, _, place in found}
    assert [(rank, host, *place.split()[:4]) for rank, host, place in found] == [
        ("0", "algo-1", "0", "0", "2", "3"),
        ("1", "algo-1", "1", "1", "2", "3"),
        ("2", "algo-2", "2", "0", "1", "3"),
    ], met


# test_simulate.py has the collective.
@pytest.mark.slow
def test_a_collective_of_hosts_with_different_slots(tmp_path, nothing_left):
    program = PROGRAMS / "collective.py"
    codes, outs, _ = by_hand(tmp_path, nothing_left, [["--slots", "2", program], ["--slots", "1", program]])
    assert codes == [0, 0], outs
    assert all(out.strip().splitlines()[-1] == "ok nnodes=2 world_size=3" for out in outs.values())
    assert "[2 algo-2] sum 6.0" in outs["algo-2"]


def test_another_command_line_on_one_host_is_refused_with_both_values(tmp_path, nothing_left):
    program = PROGRAMS / "faulty.py"
    codes, outs, seconds = by_hand(tmp_path, nothing_left, [[program, "a"], [program, "b"]], ALGORUN_LEAVE_S="60")
    assert codes == [64, 64], outs
    assert seconds < 40  # nobody waits 60 s for a host to leave
    texts = {(tmp_path / host / "output" / "failure").read_text() for host in ("algo-1", "algo-2")}
    assert len(texts) == 1
    text = texts.pop()
    assert text.startswith("mismatch: algo-2, exit 64: program differs: ")
    assert "faulty.py a on algo-1" in text
    assert "faulty.py b on algo-2" in text


def test_a_configuration_error_of_one_host_is_told_to_all(tmp_path, nothing_left):
    program = PROGRAMS / "faulty.py"
    codes, outs, _ = by_hand(tmp_path, nothing_left, [[program, "a"], [tmp_path / "absent.py"]])
    assert codes == [64, 64], outs
    for host in ("algo-1", "algo-2"):
        text = (tmp_path / host / "output" / "failure").read_text()
        assert text.startswith("configuration: algo-2, exit 64: program: ")
        assert "does not exist" in text


def without(missing, gate_s, leave_s, folder, marker):
    """One of two hosts alone, its words and its failure."""
    programs = [None if number == missing else [PROGRAMS / "faulty.py", "a"] for number in (1, 2)]
    limits = {"ALGORUN_GATE_S": str(gate_s), "ALGORUN_LEAVE_S": str(leave_s)}
    codes, outs, seconds = by_hand(folder, marker, programs, **limits)
    assert codes == [65], outs
    ((host, out),) = outs.items()
    return out.splitlines(), (folder / host / "output" / "failure").read_text(), seconds


@pytest.mark.parametrize("begun", [partial(without, 2, 2, 60)], ids=["2s"], indirect=True)
def test_a_host_that_never_comes_is_named(begun):
    _, failure, seconds = begun
    assert seconds < 40  # it is not waited for again, for 60 s; the text has the seconds of the gate
    assert failure == "gate: algo-1, exit 65: hosts missing after 2 s: algo-2\n"


@pytest.mark.parametrize("begun", [partial(without, 1, 1, 1)], ids=["1s"], indirect=True)
def test_a_leader_that_never_comes_is_named(begun):
    _, failure, _ = begun
    found = r"gate: .*hub not reached after 1 s: algo-1 \(127.0.0.1 port \d+: Connection refused\)"
    assert re.match(found, failure), failure


@pytest.mark.parametrize("begun", [partial(without, 2, 12, 1)], ids=["12s"], indirect=True)
def test_hosts_that_are_waited_for_are_named(begun):
    """After ten seconds."""
    said = [line for line in begun[0] if "waiting" in line]
    assert said == ["algorun: waiting for algo-2 (of 2 hosts)"]


@pytest.mark.parametrize("begun", [partial(without, 1, 12, 1)], ids=["12s"], indirect=True)
def test_a_follower_says_what_it_waits_for(begun):
    (line,) = [line for line in begun[0] if "waiting" in line]
    said = r"algorun: waiting for algo-1, the leader \(127.0.0.1 port \d+: Connection refused\)"
    assert re.fullmatch(said, line), line


def late(delays, folder, marker):
    program = ["--slots", "1", PROGRAMS / "again.py", 0, 0]
    return by_hand(folder, marker, [program, program], delays)


@pytest.mark.parametrize(
    "begun", [partial(late, (2, 0)), partial(late, (0, 2))], ids=["leader", "follower"], indirect=True
)
def test_a_late_host_is_waited_for(begun):
    codes, outs, _ = begun
    assert codes == [0, 0], outs
    assert [f"[{rank} algo-{rank + 1}] fine" in outs[f"algo-{rank + 1}"] for rank in (0, 1)] == [True, True]
    assert all(out.strip().splitlines()[-1] == "ok nnodes=2 world_size=2" for out in outs.values())
    assert not [
        line for out in outs.values() for line in out.splitlines() if "algorun: waiting" in line or "warning" in line
    ]
