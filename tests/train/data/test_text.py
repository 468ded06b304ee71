"""Text channels: what is read, how it is cut up, who gets what, and one clear error for each thing that can be wrong."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorun_train.common.errors import UserError
from algorun_train.data import corpus, text
from algorun_train.data.batch import IGNORED
from algorun_train.data.sampler import Batching, Epochs
from algorun_train.options.folders import Folders
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.world import World
from tests.train.training_runs import clean_environ

CPU = torch.device("cpu")
ALONE = Communicator(World(), CPU)


def paths(train: Path | None = None, validation: Path | None = None) -> Folders:
    return Folders(train, validation, Path("c"), Path("m"), Path("o"))


def numbered(count: int, context: int = 4) -> text.Text:
    """Sequences of which each byte is the number of its sequence."""
    rows = torch.arange(count, dtype=torch.uint8)[:, None].expand(count, context + 1)
    return text.Text(rows, rows[: max(count // 3, 1)], "numbers", "0", CPU)


def test_files_are_read_at_any_depth_in_the_order_of_their_names(tmp_path):
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "b" / "c" / "2.txt").write_text("two ")
    (tmp_path / "b" / "z").write_text("three")
    (tmp_path / "a.md").write_bytes("één ".encode())
    (tmp_path / ".hidden").write_text("no")
    (tmp_path / "empty.txt").touch()
    read = corpus.from_channel("train", tmp_path, ALONE)
    assert read.text.decode() == "één two three"
    assert read == corpus.from_channel("train", tmp_path, ALONE)
    (tmp_path / "b" / "z").write_text("four!")
    assert read.checksum != corpus.from_channel("train", tmp_path, ALONE).checksum


def test_sequences_do_not_overlap_and_labels_are_the_bytes_that_follow(tmp_path):
    (tmp_path / "a.txt").write_bytes(bytes(range(1, 67)))
    data = text.load(5, paths(tmp_path), ALONE)
    assert (data.train_count, data.validation_count, data.unit) == (10, 1, "sequences")
    _, (batch,) = next(data.training(Epochs(0, 0, 1, 0), Batching(10, 1, 0, 1)))
    assert batch.inputs.dtype == batch.labels.dtype == torch.int64
    assert batch.inputs.shape == batch.labels.shape == (10, 5)
    assert torch.equal(batch.labels, batch.inputs + 1)
    assert sorted(batch.inputs[:, 0].tolist()) == list(range(1, 61, 6))
    (held,) = data.evaluation(Batching(1, 1, 0, 1))
    assert held.inputs.tolist() == [[61, 62, 63, 64, 65]]  # the end of the text


def test_a_validation_channel_is_taken_whole(tmp_path):
    for name, size in (("train", 50), ("validation", 27)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_bytes(b"x" * size)
    data = text.load(4, paths(tmp_path / "train", tmp_path / "validation"), ALONE)
    assert (data.train_count, data.validation_count) == (10, 5)


def test_the_embedded_text_is_python_and_large_enough(tmp_path):
    data = text.load(256, paths(), ALONE)
    assert data.train_count > 7000
    assert data.train_count / data.validation_count == pytest.approx(9, rel=0.01)
    assert b"import" in data.train.numpy().tobytes()
    assert data.checksum == text.load(256, paths(), ALONE).checksum


@given(
    st.integers(1, 60), st.integers(1, 5), st.integers(1, 3), st.integers(1, 4), st.integers(0, 60), st.integers(0, 3)
)
def test_each_sequence_counts_exactly_once_from_any_point_on(count, batch, accumulation, replicas, done, epoch):
    data, seen = numbered(count), []
    done = min(done, count)
    ranks = [
        data.training(Epochs(epoch, done, epoch + 1, 7), Batching(batch, accumulation, r, replicas))
        for r in range(replicas)
    ]
    for turns in zip(*ranks, strict=True):
        assert all(len(batches) == accumulation for _, batches in turns)
        for step, batches in turns:
            assert step.epoch == epoch
            for each in batches:
                assert each.inputs.shape == each.labels.shape == (batch, 4)  # shapes never change
                assert (each.labels[each.valid :] == IGNORED).all()
                assert (each.inputs >= 0).all()  # also those that do not count are looked up
                assert torch.equal(each.labels[: each.valid], each.inputs[: each.valid])
                seen += each.labels[: each.valid, 0].tolist()
    whole = data.training(Epochs(epoch, 0, epoch + 1, 7), Batching(count, 1, 0, 1))
    order = next(whole)[1][0].labels[:, 0].tolist()
    assert sorted(seen) == sorted(order[done:])


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 4))
def test_evaluation_counts_each_sequence_once_and_all_ranks_take_part_in_every_pass(count, batch, replicas):
    ranks = [list(numbered(count).evaluation(Batching(batch, 2, r, replicas))) for r in range(replicas)]
    assert len({len(batches) for batches in ranks}) == 1
    seen = [n for batches in ranks for each in batches for n in each.labels[: each.valid, 0].tolist()]
    assert sorted(seen) == list(range(max(count // 3, 1)))


def test_epochs_follow_each_other_in_different_orders():
    steps = list(numbered(8).training(Epochs(1, 4, 3, 0), Batching(4, 1, 0, 1)))
    assert [(step.epoch, step.begin) for step, _ in steps] == [(1, 4), (2, 0), (2, 4)]
    assert steps[0][1][0].inputs.tolist() != steps[2][1][0].inputs.tolist()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"channel 'train' at .* holds no text; allowed: a folder of text files"),
        ({"a.txt": b""}, r"holds no text"),
        ({"a.txt": b"abcdefg"}, r"--context: 7 needs 16 bytes of text, .* has 7; allowed: at most 2; fix: a smaller"),
        ({"a.png": b"\x89PNG\0\0"}, r"a\.png is no text: it has zeros in it"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        text.load(7, paths(tmp_path), ALONE)


def test_the_longest_context_that_is_allowed_works(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"abcdefg")
    assert text.load(2, paths(tmp_path), ALONE).validation_count == 1


def test_a_channel_that_is_not_there_or_not_readable_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"none cannot be read: No such file"):
        text.load(4, paths(tmp_path / "none"), ALONE)
    (tmp_path / "broken.txt").symlink_to("nowhere")
    (tmp_path / "a.txt").write_text("text " * 10)
    with pytest.raises(UserError, match=r"broken\.txt is a dangling link to nowhere"):
        text.load(4, paths(tmp_path), ALONE)
    with pytest.raises(UserError, match="without 'train'"):
        text.load(4, paths(None, tmp_path), ALONE)


def test_more_than_a_rank_can_hold_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "huge.txt").open("wb") as file:
        os.truncate(file.fileno(), corpus.LARGEST + 1)  # takes no disk
    with pytest.raises(UserError, match=r"holds 4\.0 GiB; allowed: at most 4 GiB"):
        text.load(4, paths(tmp_path), ALONE)


LOADS = """
import os, sys
from pathlib import Path
from algorun_train.data import text
from algorun_train.common.errors import guarded, leave
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world
from algorun_train.options.folders import Folders

def main(argv):
    train = Path(os.environ["SAGEMAKER_BASE_DIR"]) / "text"
    with joined(read_world(os.environ)) as comm:
        data = text.load(4, Folders(train if train.exists() else None, None, train, train, train), comm)
        print(data.train_count, data.checksum, flush=True)
    return 0

leave(guarded(main))
"""


@pytest.fixture
def hosts(ranks, tmp_path):
    """Loads a text on two hosts, whose channels the test has filled."""

    def start():
        (tmp_path / "loads.py").write_text(LOADS)
        return ranks(2, 1, base=tmp_path, program=str(tmp_path / "loads.py"))

    for name in ("host0", "host1"):
        clean_environ(tmp_path / name)
        (tmp_path / name / "text").mkdir()
        (tmp_path / name / "text" / "a.txt").write_text("the same text on both hosts")
    return start


def test_two_hosts_with_the_same_text_agree(hosts):
    run = hosts()
    assert run.codes() == [0, 0], run.text()
    assert run.text(0) == run.text(1)


def test_another_content_on_one_host_is_one_error_on_all_ranks(hosts, tmp_path):
    (tmp_path / "host1" / "text" / "a.txt").write_text("other text")
    run = hosts()
    assert run.codes() == [64, 64]
    last = [run.text(rank).splitlines()[-1] for rank in (0, 1)]
    assert last[0] == last[1]
    assert "a.txt has another content on" in last[0]
    assert "FullyReplicated" in last[0]


def test_a_file_that_one_host_lacks_is_one_error_on_all_ranks(hosts, tmp_path):
    (tmp_path / "host0" / "text" / "b.txt").write_text("more")
    run = hosts()
    assert run.codes() == [64, 64]
    assert "b.txt cannot be read: No such file or directory; fix: check the file, on every host" in run.text(1)
