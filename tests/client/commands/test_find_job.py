"""The job that a command is about."""

from __future__ import annotations

import pytest

from algorun.common.errors import UserError
from algorun_client.commands.find_job import find_job
from algorun_client.common.progress import Silent
from algorun_client.connection import LOCAL, Site
from algorun_client.submit.place.claim import take
from algorun_client.submit.place.send import send
from algorun_client.submit.read.task_place import TaskPlace
from tests.client.submit.place.memory import World
from tests.client.submit.place.requests import ADDRESS, maker

HERE = TaskPlace(where=None, profile="", region="", project="p", bucket="b", prefix="")


def test_a_claim_without_a_job_does_not_hide_the_newest_job():
    """Its client has died, or is still sending."""
    world = World()
    connection = Site(target=world.target, following=lambda: world.target, session=None, pace=LOCAL, options="")
    take(world.target, ADDRESS, maker("0"))
    with pytest.raises(UserError, match="execution 1 was begun, but its job p-t-0001 was never created"):
        find_job(connection, "t", HERE)
    send(world.target, ADDRESS, maker("1"), Silent())
    world.status = "Failed"
    take(world.target, ADDRESS, maker("2"))
    assert find_job(connection, "t", HERE).job == "p-t-0002"
