"""Of two clients that submit the same task at once, one creates its job, whoever is slow."""

from __future__ import annotations

import threading
import time

import pytest

from algorun.common.errors import UserError
from algorun_client.common.errors import ApiError
from algorun_client.common.progress import Silent
from algorun_client.request.model import Request
from algorun_client.submit.place import decision
from algorun_client.submit.place.claim import take
from algorun_client.submit.place.send import send
from tests.client.submit.place.memory import Killed, World
from tests.client.submit.place.requests import ADDRESS, maker


def test_two_clients_at_once_with_the_same_request_make_one_job():
    world = World()
    first, other = maker(), maker()
    claimed = []

    def make(number: int) -> Request:  # the other client is faster, between this one's look and its claim
        if not claimed:
            claimed.append(number)
            send(world.target, ADDRESS, other, Silent())
        return first(number)

    assert send(world.target, ADDRESS, make, Silent()).joined
    assert world.creates == 1


def test_a_job_that_the_other_client_creates_between_two_looks_is_joined(monkeypatch):
    world = World()
    claimed = take(world.target, ADDRESS, maker()).request
    look, looks = world.describe_training_job, []

    def slow(*, TrainingJobName: str):
        looks.append(TrainingJobName)
        if len(looks) == 2:  # after the first look, which found no job
            world.create_training_job(**claimed.create)
        return look(TrainingJobName=TrainingJobName)

    monkeypatch.setattr(world, "describe_training_job", slow)
    assert send(world.target, ADDRESS, maker(), Silent()).joined
    assert list(world.jobs) == [claimed.job]
    assert len(looks) >= 2


def test_a_slow_client_that_another_one_has_overtaken_makes_no_second_job():
    world = World()
    overtaken = []

    class Slow(Silent):
        def end(self) -> None:  # between the uploads and Create another line is submitted
            if not overtaken:
                overtaken.append(True)
                send(world.target, ADDRESS, maker("2"), Silent())

    with pytest.raises(UserError, match="another client has begun execution 2 while execution 1 was uploaded"):
        send(world.target, ADDRESS, maker("1"), Slow())
    assert list(world.jobs) == ["p-t-0002"]


def test_a_client_that_overtook_a_slow_one_gives_way_to_its_job():
    world = World()
    slow = take(world.target, ADDRESS, maker("1")).request

    class Overtakes(Silent):
        def end(self) -> None:  # the slow one had looked before this one's claim, and creates its job now
            world.create_training_job(**slow.create)

    with pytest.raises(UserError, match="its job p-t-0001 still runs, with another request"):
        send(world.target, ADDRESS, maker("2"), Overtakes())
    assert list(world.jobs) == ["p-t-0001"]
    # The claim that is left hides the job that runs from nobody.
    assert send(world.target, ADDRESS, maker("1"), Silent()).joined
    with pytest.raises(UserError, match="its job p-t-0001 still runs"):
        send(world.target, ADDRESS, maker("3"), Silent())
    world.status = "Completed"
    assert send(world.target, ADDRESS, maker("3"), Silent()).request.number == 3


def test_two_submits_at_once_never_mix_their_data():
    """The slow one goes on uploading while the job of the other one reads."""
    world = World()
    other = {"a": "X", "b": "YY", "d": "D"}
    overtaken = []

    class Slow(Silent):
        def begin(self, *_: object, **__: object) -> None:
            if not overtaken:
                overtaken.append(send(world.target, ADDRESS, maker("2", other), Silent()))

    with pytest.raises(UserError, match="another client has begun execution 2"):
        send(world.target, ADDRESS, maker("1"), Slow())
    (prefix,) = overtaken[0].request.mirrors
    read = {each.uri.removeprefix(prefix): world.get(each.uri).decode() for each in world.list(prefix)}
    assert read == other


def test_of_two_clients_that_both_looked_one_creates_its_job():
    """The other one submits as a whole between the last look of this one and its call."""
    world = World()
    create, refused = world.create_training_job, []

    def slow_create(**request: object) -> object:
        if not refused:
            refused.append("")
            with pytest.raises(UserError, match="another client creates its job p-t-0001 at this moment") as error:
                send(world.target, ADDRESS, maker("2"), Silent())
            refused[0] = str(error.value)
        return create(**request)

    world.create_training_job = slow_create  # type: ignore[method-assign]
    send(world.target, ADDRESS, maker("1"), Silent())
    assert list(world.jobs) == ["p-t-0001"]
    assert "wait 30 minutes" in refused[0]


def test_a_client_that_another_one_has_ruled_out_creates_no_job():
    """It looks before the other one's claim, and decides after the other one's look."""
    world = World()
    put, begun = world.put, []

    def slow_put(uri: str, content: bytes, **options: object) -> None:
        if uri.endswith("0001/decision") and content == decision.CREATE and not begun:
            begun.append(send(world.target, ADDRESS, maker("2"), Silent()))
        put(uri, content, **options)  # type: ignore[arg-type]

    world.put = slow_put  # type: ignore[method-assign]
    with pytest.raises(UserError, match="another client has begun execution 2"):
        send(world.target, ADDRESS, maker("1"), Silent())
    assert list(world.jobs) == ["p-t-0002"]
    world.status = "Completed"
    assert send(world.target, ADDRESS, maker("1"), Silent()).request.number == 3


def test_a_client_that_died_while_it_created_its_job_is_given_up_in_the_end():
    world = World()
    create = world.create_training_job

    def dies(**_: object) -> None:
        raise Killed

    world.create_training_job = dies  # type: ignore[method-assign]
    with pytest.raises(Killed):
        send(world.target, ADDRESS, maker("1"), Silent())
    world.create_training_job = create  # type: ignore[method-assign]
    with pytest.raises(UserError, match="or was interrupted there"):
        send(world.target, ADDRESS, maker("2"), Silent())
    world.ages[decision.uri(ADDRESS, 1)] = decision.GIVEN_UP
    assert send(world.target, ADDRESS, maker("2"), Silent()).request.number == 2
    assert list(world.jobs) == ["p-t-0002"]


def test_a_client_whose_call_is_refused_takes_back_its_own_word_alone():
    """Two send the same request and have both decided; the second one's call is slow, and a third client comes."""
    world = World()
    create, decided, waits = world.create_training_job, threading.Event(), threading.Event()

    def of_first(**_: object) -> None:
        decided.set()
        assert waits.wait(10)
        raise ApiError("ResourceLimitExceeded", "0 of ml.p4d.24xlarge", "CreateTrainingJob")

    def submit() -> None:
        with pytest.raises(ApiError, match="ResourceLimitExceeded"):
            send(world.target, ADDRESS, maker("1"), Silent())

    first = threading.Thread(target=submit)

    def of_second(**request: object) -> object:
        waits.set()
        first.join(10)
        world.create_training_job = create  # type: ignore[method-assign]
        with pytest.raises(UserError, match="another client creates its job p-t-0001 at this moment"):
            send(world.target, ADDRESS, maker("2"), Silent())
        return create(**request)

    world.create_training_job = of_first  # type: ignore[method-assign]
    first.start()
    assert decided.wait(10)
    world.create_training_job = of_second  # type: ignore[method-assign]
    send(world.target, ADDRESS, maker("1"), Silent())
    assert list(world.jobs) == ["p-t-0001"]


def test_a_laptop_that_slept_after_its_decision_looks_again(monkeypatch):
    """It wakes after the others have given it up."""
    world = World()
    wall, put, slept = [1000.0], world.put, []

    def slow_put(uri: str, content: bytes, **options: object) -> None:
        put(uri, content, **options)  # type: ignore[arg-type]
        if uri == decision.uri(ADDRESS, 1) and not slept:
            slept.append(wall.append(wall.pop() + 3600))
            world.ages[uri] = decision.GIVEN_UP
            send(world.target, ADDRESS, maker("2"), Silent())

    world.put = slow_put  # type: ignore[method-assign]
    monkeypatch.setattr(time, "time", lambda: wall[0])
    with pytest.raises(UserError, match="another client has begun execution 2"):
        send(world.target, ADDRESS, maker("1"), Silent())
    assert list(world.jobs) == ["p-t-0002"]
