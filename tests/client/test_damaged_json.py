"""Files that the client reads back, with whatever somebody has put in their place: a value, or one error that names the file."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from algorun.common.errors import UserError
from algorun.common.secret_values import hidden_json
from algorun_client.local import inputs
from algorun_client.local.folder_store import FolderStore
from algorun_client.local.host_figures_reading import LocalCloudWatch
from algorun_client.local.job_description import LocalInput
from algorun_client.local.job_folder import JobFolder
from algorun_client.request.fingerprint import Fingerprint, differences
from algorun_client.request.model import Kind
from algorun_client.submit.history import claims, done, task_file
from algorun_client.submit.place import mirror
from tests.client.local.local_jobs import TRAINING, Local, training
from tests.client.submit.place.memory import World
from tests.client.submit.place.requests import ADDRESS

DEEP = "[" * 100_000 + "]" * 100_000
ODD = {
    "nothing": "",
    "deep": DEEP,
    "a bit deep": "[" * 600 + "]" * 600,
    "list": "[]",
    "null": "null",
    "number": "1e999",
    "digits": "9" * 5000,
}
PLACES = [DEEP, "[1]", "{}", "true", "1.5", "-1", "1e999", "9" * 4000, '"x"', "null"]


def _replaced(value: object, text: str) -> list[str]:
    """The JSON of `value`, with `text` in the place of each value in it, one after the other."""
    mark = "\0"

    def places(each: object) -> list[object]:
        found: list[object] = [mark]
        if isinstance(each, dict):
            found += [{**each, key: new} for key, inner in each.items() for new in places(inner)]
        if isinstance(each, list):
            found += [[*each[:at], new, *each[at + 1 :]] for at, inner in enumerate(each) for new in places(inner)]
        return found

    return [json.dumps(each).replace(json.dumps(mark), text) for each in places(value)]


def _all(value: object) -> list[str]:
    return [*ODD.values(), *(each for text in PLACES for each in _replaced(value, text))]


def _one_error(text: str, uri: str, read) -> None:
    found = None
    try:
        read()
    except UserError as error:
        found = error
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} for {text[:200]}") from error
    assert found is None or (uri in str(found) and found.fix and len(str(found)) < 600), text[:200]


def test_whatever_the_files_of_a_task_hold():
    world = World()
    store = world.target.store
    kept = {
        "format": 1,
        "project": "p",
        "task": "t",
        "settled": 2,
        "done": {"number": 2, "kind": "training", "job": "j"},
    }
    for text in _all(kept):
        world.objects[task_file.uri(ADDRESS)] = (text.encode(), "")
        _one_error(text, "task.json", lambda: task_file.read_task_file(store, ADDRESS))
    sent = {"kind": "training", "job": "j", "create": {"Environment": {"A": "b"}}, "mirrors": ["s3://a/"]}
    for text in _all(sent):
        world.objects[claims.claim_uri(ADDRESS, 1)] = (text.encode(), "")
        _one_error(text, "request.json", lambda: claims.read_claim(store, ADDRESS, 1))
    for text in _all(Fingerprint({"options": {"lr": "1"}}).to_json()):
        world.objects[ADDRESS.fingerprint(1)] = (text.encode(), "")
        _one_error(text, "fingerprint.json", lambda: done.fingerprint_of(store, ADDRESS, 1))
    for text in _all({"format": 1, "objects": {"a": [1, "etag", "sha"]}}):
        world.objects["s3://b/in-hashes/x.json"] = (text.encode(), "")
        _one_error(text, "never", lambda: mirror.origins(store, ["s3://b/in/x/"]))


@pytest.mark.parametrize(
    "content",
    [
        '{"format": 1, "project": "p", "task": "t", "settled": 2.5, "done": null}',
        '{"format": 1, "project": "p", "task": "t", "settled": true, "done": null}',
        '{"format": 1, "project": "p", "task": "t", "settled": -1, "done": null}',
        '{"format": 1, "project": "p", "task": "t", "settled": 2, "done": {"number": 0, "kind": "training", "job": "j"}}',
        '{"format": 1, "project": "p", "task": "t", "settled": 2, "done": {"number": 1, "kind": "training", "job": 7}}',
    ],
)
def test_a_number_that_no_execution_has_is_not_believed(content):
    world = World()
    world.objects[task_file.uri(ADDRESS)] = (content.encode(), "")
    with pytest.raises(UserError, match="task.json: is damaged"):
        task_file.read_task_file(world.target.store, ADDRESS)


def test_arguments_of_an_earlier_fingerprint_may_be_any_text():
    for text in ("", "{", DEEP, "1", "[1]", '["a"]'):
        old, new = Fingerprint({"options": {"arguments": text}}), Fingerprint({"options": {"arguments": '["b"]'}})
        (line,) = differences(old, new)
        assert line.startswith("arguments: were ")


def test_a_note_of_a_hash_that_is_damaged_counts_for_nothing(tmp_path):
    store = FolderStore(tmp_path)
    store.put("s3://b/a", b"x", sha256="0" * 64)
    assert store.hash_of("s3://b/a").sha256 == "0" * 64
    for text in (*ODD.values(), '{"sha256": 1, "mtime_ns": 1, "size": 1}'):
        (tmp_path / "s3-metadata/b/a").write_text(text)
        assert store.hash_of("s3://b/a").sha256 == "", text[:50]


def test_a_manifest_of_inputs_that_is_none_is_named(tmp_path):
    store, source = FolderStore(tmp_path), LocalInput("data", "s3://b/m", "data", manifest=True)
    for text in (*ODD.values(), '["a"]', '[{"prefix": 1}]', '[{"prefix": "s3://b/"}, 1]', "{}", '"x"'):
        store.put("s3://b/m", text.encode())
        with pytest.raises(ValueError, match="s3://b/m is no manifest"):
            inputs.objects(source, store)
    store.put("s3://b/m", b'[{"prefix": "s3://b/"}, "a"]')
    assert list(inputs.objects(source, store)) == [("s3://b/a", "a")]
    odd = {inputs.SUBMIT_DIRECTORY: DEEP}
    assert inputs.local_code(odd, store, tmp_path, tmp_path) == odd


def test_whatever_the_folder_of_a_local_job_holds(tmp_path):
    local = Local(tmp_path / "root")
    local.platform.accept(Kind.TRAINING, training(local.store, "one", ""), failure="CapacityError: none")
    folder = JobFolder.of(local.root, Kind.TRAINING, "one")
    record = folder.path / "record.json"
    whole = record.read_text()
    for text in _all(json.loads(whole)):
        record.write_text(text)
        _one_error(text, str(record), folder.record)
    for text in ODD.values():
        record.write_text(text)
        with pytest.raises(UserError, match=r"record\.json: is damaged .*; fix: remove the job's folder"):
            local.describe("one")
    record.write_text(whole)
    (folder.path / "request.json").write_text(DEEP)
    with pytest.raises(UserError, match=r"request\.json: is damaged"):
        local.describe("one")


def test_a_damaged_line_of_a_log_is_shown_and_hides_no_other(tmp_path):
    local = Local(tmp_path / "root")
    local.platform.accept(Kind.TRAINING, training(local.store, "one", ""), failure="CapacityError: none")
    folder = JobFolder.of(local.root, Kind.TRAINING, "one")
    folder.logs.mkdir()
    good = json.dumps({"timestamp": 1, "ingestionTime": 1, "message": "good"}).encode()
    damaged = [
        b'{"timestamp": 1, "inges' + good,
        b"\xff",
        *(text.encode() for text in ODD.values() if text),
        b'{"message": 1}',
    ]
    (folder.logs / "algo-1-1").write_bytes(b"".join(line + b"\n" for line in [good, *damaged, good]))
    for from_head in (True, False):
        query = {"logGroupName": TRAINING, "logStreamName": "one/algo-1-1", "startFromHead": from_head}
        events = local.logs.get_log_events(**query)["events"]
        assert [each["message"] for each in (events[0], events[-1])] == ["good", "good"]
        assert all("a damaged line of" in each["message"] for each in events[1:-1])
        assert len(events) == len(damaged) + 2
        assert all(len(each["message"]) < 1200 for each in events)
    folder.samples.mkdir()
    figures = b'{"time": 1.0, "CPUUtilization": 5}'
    (folder.samples / "algo-1").write_bytes(b"".join(line + b"\n" for line in [*damaged, b'{"time": "x"}', figures]))
    metric = {
        "Namespace": "/aws/sagemaker/TrainingJobs",
        "MetricName": "CPUUtilization",
        "Dimensions": [{"Name": "Host", "Value": "one/algo-1"}],
    }
    begin, end = datetime.fromtimestamp(0, UTC), datetime.fromtimestamp(60, UTC)
    query = {"Id": "cpu", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Average"}}
    answer = LocalCloudWatch(local.root).get_metric_data(StartTime=begin, EndTime=end, MetricDataQueries=[query])
    (result,) = answer["MetricDataResults"]
    assert (result["Timestamps"], result["Values"]) == ([begin], [5.0])


def test_a_text_that_is_nested_deep_hides_its_secrets_or_is_hidden():
    text = '"' + "x" * 5 + '"'
    for _ in range(4):
        text = json.dumps("[" * 190 + text + "]" * 190)
    assert isinstance(hidden_json(json.loads(text)), str)
    assert "hf_" not in str(hidden_json("[" * 900 + '"hf_' + "a" * 34 + '"' + "]" * 900))
