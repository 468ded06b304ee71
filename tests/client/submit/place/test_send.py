"""A request becomes one job, whenever the client dies."""

from __future__ import annotations

import json

import pytest

from algorun.common.errors import UserError
from algorun_client.common.errors import ApiError, Interrupted, NotFound
from algorun_client.common.progress import PlainProgress, Silent
from algorun_client.request.model import Request, Upload
from algorun_client.submit.place.claim import ClaimStep, choose
from algorun_client.submit.place.send import send
from tests.client.submit.place.memory import Killed, World
from tests.client.submit.place.requests import ADDRESS, FILES, folder, hashes, maker


def test_a_client_killed_at_any_moment_leaves_one_job_and_loses_nothing():
    moments = 0
    while True:
        moments += 1
        world = World()
        world.objects[folder(FILES) + "put there by hand"] = (b"old", "")
        world.kill_at = moments
        try:
            send(world.target, ADDRESS, maker(), Silent())
        except Killed:
            world.kill_at = -1
            assert len(world.jobs) <= 1
            sent = send(world.target, ADDRESS, maker(), Silent())
            assert sent.request.number == 1
        else:
            break
        assert world.creates == 1
        assert list(world.jobs) == ["p-t-0001"]
        stored = {uri: data for uri, (data, _) in world.objects.items() if "/jobs/" not in uri and uri != hashes(FILES)}
        assert stored == {each.uri: each.data for each in sent.request.uploads}
        claim = json.loads(world.get(f"{ADDRESS.uri}/jobs/0001/request.json"))
        assert claim["create"] == sent.request.create
    assert moments > 12


class Policed(World):
    """An account that refuses jobs whose request has one of these fields."""

    def __init__(self, *forbidden: str, code: str = "AccessDeniedException", text: str = "explicit deny") -> None:
        super().__init__()
        self.forbidden, self.refused, self.code, self.text = forbidden, 0, code, text

    def create_training_job(self, **request):
        if any(name in request for name in self.forbidden):
            self.refused += 1
            raise ApiError(self.code, self.text, "CreateTrainingJob")
        return super().create_training_job(**request)


def held(number):
    """A request with --hold-on-failure."""
    made = maker()(number)
    made.create["Environment"]["ALGORUN_HOLD_ON_FAILURE_S"] = "1800"
    made.create["RemoteDebugConfig"] = {"EnableRemoteDebug": True}
    return made


@pytest.mark.parametrize(
    ("code", "text"), [("AccessDeniedException", "deny"), ("ValidationException", "RemoteDebugConfig is not supported")]
)
def test_a_job_whose_hosts_nobody_may_enter_runs_without_the_hold_and_says_so(code, text):
    world = Policed("RemoteDebugConfig", code=code, text=text)
    sent = send(world.target, ADDRESS, held, Silent())
    assert sent.warning.startswith(
        f"--hold-on-failure: remote debugging is not allowed ({code}: {text}), so nobody could"
    )
    job = world.jobs["p-t-0001"]
    assert set(job["Environment"]) == {"ALGORUN_REQUEST_ID"}
    again = send(world.target, ADDRESS, held, Silent())
    assert (again.joined, again.warning, world.creates) == (True, "", 1)


@pytest.mark.parametrize(
    ("world", "refused"),
    [
        (Policed("TrainingJobName"), 2),
        (Policed("TrainingJobName", code="ResourceLimitExceeded"), 1),
        (Policed("TrainingJobName", code="ValidationException", text="no such image"), 1),
    ],
)
def test_a_job_that_is_not_allowed_at_all_keeps_its_own_error(world, refused):
    with pytest.raises(ApiError, match=f"{world.code}: {world.text}"):
        send(world.target, ADDRESS, held, Silent())
    assert (world.refused, world.jobs) == (refused, {})


@pytest.mark.parametrize("code", ["ResourceLimitExceeded", "ServiceUnavailable"])
def test_what_the_job_without_a_hold_is_refused_for_is_told(code):
    """Then other hosts are tried, or a job whose answer was lost is not made twice."""

    class Full(Policed):
        def create_training_job(self, **request):
            super().create_training_job(**request)
            raise ApiError(code, "the second answer", "CreateTrainingJob")

    world = Full("RemoteDebugConfig")
    with pytest.raises(ApiError, match=f"{code}: the second answer"):
        send(world.target, ADDRESS, held, Silent())


def test_a_job_that_runs_is_joined_and_never_doubled():
    world = World()
    assert not send(world.target, ADDRESS, maker(), Silent()).joined
    puts = len(world.puts)
    assert send(world.target, ADDRESS, maker(), Silent()).joined
    assert (world.creates, len(world.puts)) == (1, puts)


def test_another_request_is_refused_while_the_tasks_job_runs():
    world = World()
    send(world.target, ADDRESS, maker("1"), Silent())
    with pytest.raises(UserError, match="still runs, with another request.*fix: `algorun stop p-t-0001`"):
        send(world.target, ADDRESS, maker("2"), Silent())
    assert world.creates == 1


def test_after_the_end_the_next_execution_uploads_only_what_changed():
    world = World()
    send(world.target, ADDRESS, maker(), Silent())
    world.status = "Failed"
    world.puts.clear()
    files = {"a": "A", "b": "XX"}
    sent = send(world.target, ADDRESS, maker(files=files), Silent())
    assert sent.request.number == 2
    jobs = f"{ADDRESS.uri}/jobs/0002/"
    assert world.puts == [f"{jobs}request.json", folder(files) + "b", hashes(files), f"{jobs}decision"]
    assert world.copies == [folder(files) + "a"]
    assert world.get(folder(files) + "a") == b"A"


def test_a_claim_of_another_request_without_a_job_is_left_and_the_next_number_taken():
    world = World()
    world.kill_at = 3  # after the claim
    with pytest.raises(Killed):
        send(world.target, ADDRESS, maker("1"), Silent())
    world.kill_at = -1
    assert send(world.target, ADDRESS, maker("2"), Silent()).request.number == 2
    assert list(world.jobs) == ["p-t-0002"]


def test_after_a_refused_call_another_request_is_welcome():
    world = World()
    create = world.create_training_job

    def refuse(**_: object) -> None:
        raise ApiError("ResourceLimitExceeded", "0 of ml.p4d.24xlarge", "CreateTrainingJob")

    world.create_training_job = refuse  # type: ignore[method-assign]
    with pytest.raises(ApiError):
        send(world.target, ADDRESS, maker("1"), Silent())
    world.create_training_job = create  # type: ignore[method-assign]
    assert send(world.target, ADDRESS, maker("2"), Silent()).request.number == 2


@pytest.mark.parametrize("what", [ApiError("SlowDown", "", "DeleteObject"), KeyboardInterrupt()])
def test_a_refusal_is_told_whatever_happens_after_it(what):
    world = World()

    def refuse(**_: object) -> None:
        raise ApiError("ResourceLimitExceeded", "0 of ml.p4d.24xlarge", "CreateTrainingJob")

    def delete(uri: str) -> None:
        raise what

    world.create_training_job, world.delete = refuse, delete  # type: ignore[method-assign]
    with pytest.raises((ApiError, Interrupted), match="ResourceLimitExceeded") as error:
        send(world.target, ADDRESS, maker("1"), Silent())
    assert isinstance(error.value, Interrupted) == isinstance(what, KeyboardInterrupt)


def test_data_whose_earlier_upload_is_gone_is_uploaded():
    world = World()
    send(world.target, ADDRESS, maker(), Silent())
    world.status = "Completed"
    del world.objects[folder(FILES) + "a"]
    files = {"a": "A", "b": "BB"}
    send(world.target, ADDRESS, maker(files=files), Silent())
    assert world.copies == [folder(files) + "b"]
    assert world.get(folder(files) + "a") == b"A"


def test_a_name_in_use_by_another_request_is_an_error():
    world = World()
    world.jobs["p-t-0001"] = {"TrainingJobName": "p-t-0001", "Environment": {"ALGORUN_REQUEST_ID": "another"}}
    with pytest.raises(UserError, match="job p-t-0001: the name is in use"):
        send(world.target, ADDRESS, maker(), Silent())


def test_a_bucket_that_does_not_exist_is_named_with_its_fix():
    world = World()

    def put(uri: str, content: bytes, **_: object) -> None:
        raise NotFound("NoSuchBucket", "The specified bucket does not exist", "PutObject")

    world.put = put  # type: ignore[method-assign]
    with pytest.raises(
        UserError,
        match="--bucket: b: The specified bucket does not exist; fix: create it with --create-bucket .or `aws s3 mb",
    ):
        send(world.target, ADDRESS, maker(), Silent())


def test_a_claim_holds_no_secret():
    world, made = World(), maker()

    def make(number: int) -> Request:
        request = made(number)
        request.create["Environment"]["WANDB_API_KEY"] = "hunter2"  # type: ignore[index]
        return request

    sent = send(world.target, ADDRESS, make, Silent())
    stored = world.get(f"{ADDRESS.uri}/jobs/0001/request.json")
    assert b"hunter2" not in stored
    assert world.jobs[sent.request.job]["Environment"]["WANDB_API_KEY"] == "hunter2"
    assert send(world.target, ADDRESS, make, Silent()).joined


def test_the_outputs_of_earlier_executions_are_not_listed():
    """A processing task may leave a million objects."""
    world = World()
    send(world.target, ADDRESS, maker(files={}), Silent())
    world.status = "Completed"
    listed, whole = [], world.list
    world.list = lambda prefix: (listed.append(prefix), whole(prefix))[1]  # type: ignore[method-assign]
    assert send(world.target, ADDRESS, maker(files={}), Silent()).request.number == 2
    assert listed == [folder({})]


def test_an_execution_whose_claim_was_removed_keeps_its_number():
    world = World()
    send(world.target, ADDRESS, maker("1"), Silent())
    world.status = "Completed"
    world.objects[f"{ADDRESS.uri}/jobs/0002/output/model"] = (b"", "")
    assert send(world.target, ADDRESS, maker("1"), Silent()).request.number == 3


def test_looking_writes_nothing():
    world = World()
    assert choose(world.target, ADDRESS, maker()).step is ClaimStep.CLAIM
    assert world.objects == {}


@pytest.mark.parametrize("content", [b"{}", b"[" * 100_000], ids=["empty", "deep"])
def test_an_unreadable_claim_is_an_error_with_its_address(content):
    world = World()
    world.objects[f"{ADDRESS.uri}/jobs/0001/request.json"] = (content, "")
    with pytest.raises(UserError, match="jobs/0001/request.json: not a request of algorun"):
        choose(world.target, ADDRESS, maker())


def test_an_upload_that_fails_ends_the_others_and_makes_no_job(tmp_path):
    world = World()

    def put(uri: str, content: bytes, **_: object) -> None:
        if "/jobs/" not in uri:
            raise ApiError("AccessDenied", "no", "PutObject")

    world.put = put  # type: ignore[method-assign]
    with pytest.raises(ApiError, match="AccessDenied"):
        send(world.target, ADDRESS, maker(), Silent())
    assert world.creates == 0


def test_a_file_that_changes_after_it_was_hashed_is_refused(tmp_path):
    file = tmp_path / "data"
    file.write_text("new")
    world = World()
    made = maker(files={})(1)
    upload = Upload(uri=folder({}) + "data", size=3, sha256="0" * 64, path=file)
    request = Request(
        kind=made.kind,
        address=ADDRESS,
        number=1,
        job=made.job,
        create=made.create,
        uploads=(upload,),
        mirrors=made.mirrors,
    )
    with pytest.raises(UserError, match="changed while it was being uploaded"):
        send(world.target, ADDRESS, lambda number: request, Silent())
    assert world.creates == 0


def test_plain_progress_tells_count_and_size(capsys):
    world = World()
    send(world.target, ADDRESS, maker(files={"a": "x" * 2_000_000}), PlainProgress())
    assert capsys.readouterr().err == "algorun: uploading 2 objects, 2.0 MB\n"
