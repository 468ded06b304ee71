"""Checkpoints of several shards on several ranks: on any disks, after any loss, all ranks resume from the same one."""

import json
import os
import re
import signal
import tempfile
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from algorun_train.checkpoint.shard_reader import ShardReader
from algorun_train.checkpoint.shard_saver import ShardSaver
from algorun_train.checkpoint.shards import FORMAT, Save, Shard, ShardStore, newest_complete
from tests.conftest import examples
from tests.train.programs.sharded_training import IDENTITY, Layout, files, same, straight
from tests.train.thread_communicator import as_ranks

PROGRAM = str(Path(__file__).parents[1] / "programs" / "sharded_training.py")


def together(folders: list[Path]) -> dict[str, torch.Tensor]:
    """What all ranks hold that have left their state in these folders."""
    left = [torch.load(file, weights_only=True) for folder in folders for file in folder.glob("rank*.pt")]
    return united(left)


def united(held: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """What all ranks hold together; copies must be equal."""
    found: dict[str, torch.Tensor] = {}
    for each in held:
        for name, tensor in each.items():
            assert name not in found or torch.equal(found[name], tensor)
            found[name] = tensor
    return found


class Spread:
    """A checkpoint's parts as they lie in the ranks' folders: for each part {rank: whole}."""

    def __init__(self, step: int, copies: list[dict[int, bool]]) -> None:
        self.step, self.copies = step, copies

    def whole(self) -> bool:
        return all(any(copies.values()) for copies in self.copies)

    def put(self, roots: list[Path]) -> None:
        save = Save(float(self.step), self.step, len(self.copies))
        for number, copies in enumerate(self.copies):
            for rank, whole in copies.items():
                store = ShardStore(roots[rank], 2)
                value = torch.full((3,), float(self.step))
                state = {"format": FORMAT, "identity": IDENTITY, "losses": [1.0], "optimizer": {}}
                state["position"] = {"epoch": 0, "samples": 0, "step": self.step}
                part = store.write(save, number, state | {"model": {f"w{number}": value}})
                if not whole:
                    os.truncate(store.path(part), part.size - 1)


@st.composite
def spreads(draw):
    ranks = draw(st.integers(1, 3))
    copies = st.dictionaries(st.integers(0, ranks - 1), st.booleans(), max_size=ranks)
    return ranks, [
        Spread(n + 1, draw(st.lists(copies, min_size=1, max_size=3))) for n in range(draw(st.integers(0, 3)))
    ]


@examples(60)
@given(spreads(), st.data())
def test_all_ranks_take_the_newest_checkpoint_whose_parts_are_all_somewhere(case, data):
    ranks, written = case
    wants = [data.draw(st.sets(st.sampled_from(["w0", "w1", "w2"]))) for _ in range(ranks)]
    expected = next((spread for spread in reversed(written) if spread.whole()), None)
    with tempfile.TemporaryDirectory() as base:
        roots = [Path(base) / str(rank) for rank in range(ranks)]
        for spread in written:
            spread.put(roots)
        results = as_ranks(
            ranks,
            lambda comm: ShardReader(ShardStore(roots[comm.rank], 2), comm, lambda text: None).newest(
                IDENTITY, wants[comm.rank].__contains__
            ),
        )
    for rank, result in enumerate(results):
        assert (result is None) == (expected is None)
        if expected is not None:
            assert result.progress.position.step == expected.step
            names = {f"w{n}" for n in range(len(expected.copies))} & wants[rank]
            assert {n: t.tolist() for n, t in result.model.items()} == {n: [float(expected.step)] * 3 for n in names}


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2), st.integers(0, 3))), st.integers(1, 3))
def test_what_is_kept_is_complete_and_the_newest(copies, keep):
    rows: list = [[], []]
    store = ShardStore(Path("x"), keep)
    for step, rank_number, number in copies:
        if number < 2:
            rows[rank_number % 2].append(Shard(Save(float(step), step, 2), number, 1, ""))
    complete = {s for s in range(1, 5) if {p.number for row in rows for p in row if p.save.step == s} == {0, 1}}
    assert [save.step for save in newest_complete(rows, store.keep)] == sorted(complete, reverse=True)[:keep]


# Ranks as threads, with a shared folder or one each


def train_on(roots: list[Path], stages: int, steps: int) -> tuple[int, list[str], dict[str, torch.Tensor]]:
    """A job of `steps` steps more: the step that it went on from, what its leader said, what all ranks hold then."""
    said: list[str] = []

    def run(comm):
        say = (lambda text: said.append(str(text))) if comm.is_leader else (lambda text: None)
        layout, store = Layout(stages, comm.rank, comm.size), ShardStore(roots[comm.rank], 2)
        begin = layout.resume(store, comm, say)
        saver = ShardSaver(store, comm, say)
        for number in range(begin + 1, begin + steps + 1):
            layout.step(number)
            saver.save(number, stages, layout.states(number))
        saver.finish()
        return begin, layout.everything()

    results = as_ranks(len(roots), run)
    assert len({begin for begin, _ in results}) == 1
    return results[0][0], said, united([held for _, held in results])


def test_two_ranks_of_each_stage_on_a_shared_disk_and_a_torn_part(tmp_path):
    roots = [tmp_path / "shared"] * 4
    train_on(roots, 2, 3)
    assert [name.split("/")[0] for name in files(roots[0])] == ["step-00000002"] * 4 + ["step-00000003"] * 4
    file = roots[0] / "step-00000003" / "part-0001-of-0002.pt"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    begin, said, held = train_on(roots, 2, 2)
    assert begin == 2
    assert same(held, straight(4))
    assert any(
        "step-00000003 is damaged on rank 1's host: part-0001-of-0002.pt differs from its checksum" in s for s in said
    )
    assert any(
        "step-00000003 is not complete and is passed over: no undamaged copy of shard 1 of 2 (from 0)" in s
        for s in said
    )
    assert [name.split("/")[0] for name in files(roots[0])] == ["step-00000003"] * 4 + ["step-00000004"] * 4


def test_a_torn_part_is_taken_from_another_host_that_has_it_whole(tmp_path):
    roots = [tmp_path / "a", tmp_path / "b"]
    train_on(roots, 2, 1)
    for name in ("part-0001-of-0002.pt", "part-0001-of-0002.json"):
        copy = roots[0] / "step-00000001" / name
        copy.write_bytes((roots[1] / "step-00000001" / name).read_bytes())
    for torn in roots:
        whole = (torn / "step-00000001" / "part-0001-of-0002.pt").read_bytes()
        os.truncate(torn / "step-00000001" / "part-0001-of-0002.pt", 10)
        begin, _, held = train_on(roots, 2, 0)
        assert begin == 1
        assert same(held, straight(1))
        (torn / "step-00000001" / "part-0001-of-0002.pt").write_bytes(whole)


def test_a_host_that_has_lost_its_disk_costs_the_checkpoints_of_which_only_it_had_a_part(tmp_path):
    roots = [tmp_path / "a", tmp_path / "b"]
    train_on(roots, 2, 2)
    for file in (roots[1] / "step-00000002").iterdir():
        file.unlink()
    begin, said, held = train_on(roots, 2, 2)
    assert begin == 1
    assert same(held, straight(3))
    assert any("step-00000002 lacks shard 1 of 2 (from 0) on all hosts and is passed over" in text for text in said)


def test_one_s3_prefix_copied_to_all_hosts(tmp_path):
    roots = [tmp_path / str(rank) for rank in range(3)]
    train_on(roots[:2], 4, 2)
    for target in roots:
        for source in roots[:2]:
            for name in files(source):
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                (target / name).write_bytes((source / name).read_bytes())
    begin, said, held = train_on(roots, 1, 1)
    assert begin == 2
    assert same(held, straight(3))
    assert not [text for text in said if "warning" in text]


def test_an_old_checkpoint_goes_only_when_the_newer_one_is_on_all_hosts(tmp_path):
    roots = [tmp_path / "a", tmp_path / "b"]
    train_on(roots, 2, 2)
    before = [files(root) for root in roots]

    class Slow(ShardStore):
        def write(self, save, number, state):
            assert [files(root)[:4] for root in roots] == before  # what was there stays until this is over
            return ShardStore.write(self, save, number, state)

    def run(comm):
        layout = Layout(2, comm.rank, comm.size)
        saver = ShardSaver(Slow(roots[comm.rank], 1), comm, lambda text: None)
        saver.save(3, 2, layout.states(3))
        saver.finish()

    as_ranks(2, run)
    assert [{name.split("/")[0] for name in files(root)} for root in roots] == [{"step-00000003"}] * 2


# Real ranks


def test_written_by_two_stages_and_read_by_one_two_and_four_on_separate_disks(ranks):
    jobs = [{"stages": stages, "to": to} for stages, to in ((2, 2), (4, 4), (2, 5), (1, 7), (2, 8))]
    run = ranks(2, 1, json.dumps(jobs), program=PROGRAM)
    assert run.codes() == [0, 0], run.text(0) + run.text(1)
    begun = [line for line in run.text(1).splitlines() if line.startswith("from")]
    assert begun == ["from 0 to 2", "from 2 to 4", "from 4 to 5", "from 5 to 7", "from 7 to 8"]
    hosts = [run.base / "host0", run.base / "host1"]
    assert same(together(hosts), straight(8))
    shown = [files(host / "checkpoints") for host in hosts]
    assert shown[1] == ["step-00000008/part-0001-of-0002.json", "step-00000008/part-0001-of-0002.pt"]
    assert [name.split("/")[0] for name in shown[0]] == ["step-00000007"] * 2 + ["step-00000008"] * 2


def test_killed_at_any_moment_and_again_it_goes_on_from_the_newest_whole_checkpoint(ranks, tmp_path):
    begun, stages = 0, [2, 4, 2, 1]
    for turn, now in enumerate(stages):
        run = ranks(2, 1, json.dumps([{"stages": now, "to": 100_000}]), base=tmp_path, program=PROGRAM)
        run.wait_for(f"step-{begun + 7 + turn:08d} ")  # told to be on all disks
        run.signal(signal.SIGKILL, [turn % 2])
        run.signal(signal.SIGKILL, [1 - turn % 2])
        run.codes()
        begun = max(map(int, re.findall(r"step-(\d{8}) seconds", run.text())))
    last = ranks(2, 1, json.dumps([{"stages": 2, "only": 3}]), base=tmp_path, program=PROGRAM)
    assert last.codes() == [0, 0], last.text(0) + last.text(1)
    (line,) = [line for line in last.text(0).splitlines() if line.startswith("from")]
    step = int(line.split()[1])
    assert step >= begun
    assert same(together([tmp_path / "host0", tmp_path / "host1"]), straight(step + 3))
    assert not list(tmp_path.rglob("*.tmp"))


FULL = """
import resource, runpy, sys
limit, rank = 16_384, 1  # more than the log of a rank needs, less than a part does
import os
if int(os.environ["RANK"]) == rank:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


def test_a_full_disk_on_one_host_ends_all_ranks_with_its_error_and_older_checkpoints_stay(ranks, tmp_path):
    run = ranks(2, 1, json.dumps([{"stages": 2, "to": 2}]), program=PROGRAM)
    assert run.codes() == [0, 0], run.text(0) + run.text(1)
    before = files(run.base / "host1" / "checkpoints")
    (tmp_path / "full.py").write_text(FULL)
    full = str(tmp_path / "full.py")
    again = ranks(2, 1, PROGRAM, json.dumps([{"stages": 2, "to": 4}]), base=run.base, program=full)
    assert again.codes() == [1, 1]
    assert "File too large" in again.text(1)
    assert "RuntimeError: rank 1 failed to save a checkpoint: " in again.text(0)
    assert "File too large" in again.text(0)
    assert files(run.base / "host1" / "checkpoints") == before
    last = ranks(2, 1, json.dumps([{"stages": 1, "to": 3}]), base=run.base, program=PROGRAM)
    assert last.codes() == [0, 0], last.text(0) + last.text(1)
    assert "from 2 to 3" in last.text(0)
