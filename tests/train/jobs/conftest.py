"""A text to train on, and the pipeline entrypoint on ranks."""

import random
from typing import Any

import pytest

from tests.train.training_runs import Ranks

from .pipeline_runs import TINY, WORDS, words


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A channel of sentences; a tenth of it is held out."""
    folder = tmp_path_factory.mktemp("text")
    drawn = random.Random(0)
    letters = " ".join(drawn.choice(WORDS) for _ in range(1500))[: 33 * 138]
    (folder / "a.txt").write_text(letters)
    return folder


@pytest.fixture
def start(ranks, text):
    """Starts the entrypoint on ranks of one host."""

    def begin(world: int, *tables: dict, **options: Any) -> Ranks:
        return ranks(1, world, *words(TINY, {"train": text}, *tables), program="algorun_train.jobs.pipeline", **options)

    return begin
