"""What ranks agree on before they share a dataset: one error for all of them, or one layout."""

import subprocess
import sys
from dataclasses import replace

import pytest

from algorun.data import StepSampler, UserError
from algorun_train.data.order_files import WHOLE, File
from algorun_train.data.order_ranks import RankFiles, agree, offer_of
from tests.train.training_runs import ROOT

MINE = RankFiles(0, 2, 4, 1, 0, "pad", (File(WHOLE, 10),))
OTHER = replace(MINE, rank=1)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (replace(OTHER, batch=5), "batch_size is 4 on rank 0 and 5 on rank 1; allowed: the same on all ranks"),
        (replace(OTHER, seed=7), "seed is 0 on rank 0 and 7 on rank 1"),
        (replace(OTHER, last="drop"), "last is 'pad' on rank 0 and 'drop' on rank 1"),
        (replace(OTHER, files=(File(WHOLE, 9),)), "the dataset has 10 samples on rank 0 and 9 on rank 1; allowed: "),
        (replace(OTHER, rank=0), "replicas=2, and the processes are ranks [0] of them"),
        (replace(OTHER, error="algorun.data: wrong there"), "algorun.data: wrong there"),
    ],
)
def test_every_rank_raises_the_same_error(other, text):
    offers = [offer_of(offer.text()) for offer in (MINE, other)]
    assert offers == [MINE, other]
    told = set()
    for rank in offers:
        with pytest.raises(UserError) as raised:
            agree(rank, offers)
        told.add(str(raised.value))
    assert len(told) == 1
    assert text in told.pop()


def test_a_file_on_two_hosts_is_refused_by_name():
    offers = [replace(MINE, files=(File("a", 3), File("b", 4))), replace(OTHER, files=(File("b", 4), File("c", 2)))]
    with pytest.raises(UserError, match="file 'b' is on ranks 0 and 1"):
        agree(offers[0], offers)


def test_hosts_with_uneven_files_take_the_same_number_of_steps_and_say_it(capsys):
    files = [{"a": 11}, {"b": 3}]
    texts = [
        RankFiles(rank, 2, 4, 1, 0, "pad", tuple(File(*item) for item in held.items())).text()
        for rank, held in enumerate(files)
    ]
    valid = []
    for rank, held in enumerate(files):
        sampler = StepSampler(sum(held.values()), 4, files=held, rank=rank, replicas=2, exchange=lambda _: texts)
        valid.append([(sampler.valid, sampler.total) for _ in sampler.counted(sampler)])
    assert valid == [[(4, 7), (4, 4), (3, 3)], [(3, 7), (0, 4), (0, 3)]]
    said = capsys.readouterr().out
    assert "2 groups of ranks hold different files, with 11, 3 samples" in said
    assert "10 places of an epoch's batches are filled with repeated samples" in said


def test_ranks_of_one_pipeline_read_the_same_samples():
    offers = [replace(MINE, rank=rank) for rank in (0, 0, 1, 1)]
    layouts = [agree(offer, offers) for offer in offers]
    assert [layout.replica for layout in layouts] == [0, 0, 1, 1]
    assert {layout.replicas for layout in layouts} == {2}


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"RANK": "1", "WORLD_SIZE": "4"}, (1, 4)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, (2, 3)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, (0, 2)),
        ({}, (0, 1)),
    ],
)
def test_the_numbers_that_a_launcher_gives(environ, found):
    code = f"from algorun_train.data.order_ranks import numbers; assert numbers({environ!r}) == ({found[0]}, {found[1]}, None)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)
