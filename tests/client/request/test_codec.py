"""A request as JSON; its identity knows what is sent, and nothing of this machine."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from algorun_client.request import codec
from algorun_client.request.model import FORMAT, Kind, Request, TaskAddress, Upload

ADDRESS = TaskAddress(bucket="b", project="imagenet", task="train", prefix="some/folder")
REQUEST = Request(
    kind=Kind.TRAINING,
    address=ADDRESS,
    number=7,
    job="imagenet-train-0007-abcdef",
    create={"TrainingJobName": "imagenet-train-0007-abcdef", "HyperParameters": {"algorun_args": '["\\u00e9"]'}},
    uploads=(Upload(uri=ADDRESS.code("00ff"), size=3, sha256="00ff", data=b"abc"),),
    mirrors=(ADDRESS.input("train", "f"),),
    unknown=("RoleArn",),
    warnings=("a warning",),
)


def test_all_of_a_request_is_in_its_json():
    assert json.loads(json.dumps(codec.to_json(REQUEST))) == {
        "format": FORMAT,
        "kind": "training",
        "bucket": "b",
        "prefix": "some/folder",
        "project": "imagenet",
        "task": "train",
        "number": 7,
        "job": REQUEST.job,
        "create": REQUEST.create,
        "uploads": [{"uri": ADDRESS.code("00ff"), "size": 3, "sha256": "00ff"}],
        "mirrors": [ADDRESS.input("train", "f")],
        "unknown": ["RoleArn"],
        "warnings": ["a warning"],
    }


def test_json_holds_no_content_and_no_path_of_this_machine():
    here = dataclasses.replace(REQUEST.uploads[0], path=Path("/home/me/code.tar.gz"), data=None)
    text = json.dumps(codec.to_json(dataclasses.replace(REQUEST, uploads=(here,))))
    assert "/home/me" not in text


def test_the_identity_depends_on_what_is_sent_alone():
    def of(request):
        return codec.identity(request.kind, request.create, request.uploads)

    assert of(REQUEST) == of(
        dataclasses.replace(REQUEST, uploads=(dataclasses.replace(REQUEST.uploads[0], data=None, path=Path("/x")),))
    )
    assert of(REQUEST) == of(dataclasses.replace(REQUEST, create=dict(reversed(REQUEST.create.items()))))
    assert of(REQUEST) != of(dataclasses.replace(REQUEST, create={**REQUEST.create, "RoleArn": "x"}))
    assert of(REQUEST) != of(
        dataclasses.replace(REQUEST, uploads=(dataclasses.replace(REQUEST.uploads[0], sha256="01"),))
    )


def test_the_folders_of_a_task():
    assert ADDRESS.uri == "s3://b/some/folder/imagenet/train"
    assert ADDRESS.state == "s3://b/some/folder/imagenet/train/state/"
    assert ADDRESS.output(7) == "s3://b/some/folder/imagenet/train/jobs/0007/output"
