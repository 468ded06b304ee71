"""What the inputs in S3 hold, as far as it can be known."""

from __future__ import annotations

import pytest

from algorun.common.errors import UserError
from algorun_client.common.errors import ApiError
from algorun_client.submit.look_up import input_contents
from algorun_client.submit.look_up.input_contents import read_contents
from tests.client.submit.place.memory import World
from tests.client.submit.specs import spec

IMAGES = "s3://b-ucket/images"


def contents(world, *sources):
    task = spec("ddp", **{"in": [f"c{number}={each}" for number, each in enumerate(sources)]})
    return read_contents(world.target.store, task, "kept", {IMAGES: f"{IMAGES}/"})


@pytest.fixture
def world():
    made = World()
    for uri in (f"{IMAGES}/1.png", f"{IMAGES}/deep/2.png", f"{IMAGES}/", f"{IMAGES}-old/3.png"):
        made.objects[uri] = (b"x", "")
    return made


def test_each_object_counts_with_size_and_etag_and_no_neighbour(world):
    found, unread = contents(world, IMAGES)
    assert unread == {}
    assert {name: text.split()[0] for name, text in found[IMAGES].items()} == {"1.png": "1", "deep/2.png": "1"}
    before = found[IMAGES]
    world.objects[f"{IMAGES}/1.png"] = (b"y", "")
    after = contents(world, IMAGES)[0][IMAGES]
    assert {name for name in before if before[name] != after[name]} == {"1.png"}


def test_the_state_of_a_task_is_read_and_what_its_jobs_left_is_not(world):
    for name in ("state/a", "state/sub/b", "state-2/c"):
        world.objects[f"s3://kept/vision/t/{name}"] = (b"x", "")
    found, _ = contents(world, "task:t/state", "task:t/state/sub", "task:t/output", "task:none/state")
    rows = {source: sorted(table) for source, table in found.items()}
    assert rows == {"task:t/state": ["a", "sub/b"], "task:t/state/sub": ["b"], "task:none/state": []}


def test_what_may_not_be_listed_is_unknown(world, monkeypatch):
    def refused(code):
        def listed(prefix):
            raise ApiError(code, "no", "ListObjectsV2")

        monkeypatch.setattr(world, "list", listed)

    refused("AccessDenied")
    assert contents(world, IMAGES) == ({}, {IMAGES: "may not be listed, so nobody knows whether it has changed"})
    refused("ExpiredToken")
    with pytest.raises(UserError, match="ListObjectsV2: ExpiredToken: no"):
        contents(world, IMAGES)


def test_nobody_waits_for_the_list_of_millions(world, monkeypatch):
    monkeypatch.setattr(input_contents, "MOST_OBJECTS", 2)
    assert contents(world, IMAGES) == ({}, {IMAGES: "has more than 2 objects, which are not compared"})
