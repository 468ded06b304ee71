"""The objects of a task's tunings."""

from __future__ import annotations

from algorun_client.submit.history.tune_history import TuneHistory
from tests.client.submit.place.memory import World
from tests.client.submit.place.requests import ADDRESS


def test_a_folder_that_holds_a_job_s_output_alone_is_no_tuning():
    """Its tuning was removed while a job ran, which wrote its model at its end."""
    world = World()
    history = TuneHistory(world.target.store, ADDRESS)
    world.put(f"{ADDRESS.uri}/tune/0002/output/model.tar.gz", b"")
    assert history.newest() is None
    history.begin(1, {"points": 3}, None)
    found = history.newest()
    assert found is not None
    assert (found.number, found.asked) == (1, {"points": 3})
