"""What decides a result: equal for the same task on every machine, and different for whatever may change it."""

from __future__ import annotations

import dataclasses
import json

import pytest

from algorun_client.request import fingerprint
from algorun_client.request.fingerprint import Fingerprint, differences, from_json, rows
from algorun_client.request.model import Kind
from algorun_client.submit.look_up.facts import Listed, Upstream
from tests.client.submit.specs import FACTS, request, spec

SOURCE = "s3://b-ucket/images"


def facts(objects=None, job="p-data-0001-abc", made="f1", **changed):
    listed = {SOURCE: Listed(uri=f"{SOURCE}/", objects=9)}
    upstream = {"data": Upstream(kind=Kind.PROCESSING, number=1, job=job, fingerprint=made)}
    contents = {SOURCE: objects or {"1.png": "10 e1", "2.png": "10 e2"}}
    return dataclasses.replace(FACTS, sources=listed, upstreams=upstream, contents=contents, **changed)


def made(*words, known=None, number=1, **options):
    given = {"in": [f"train={SOURCE}", "val=task:data/output/val"], **options}
    return request(spec(*(words or ("train.py", "--lr", "0.1")), **given), known or facts(), number).fingerprint


def test_executions_and_their_cost_do_not_count():
    same = made()
    assert same.sha256 == made(number=7).sha256
    for changed in (
        {"spot": True},
        {"max_run": "1h"},
        {"tags": ["a=b"]},
        {"metrics": ["m=x ([0-9])"]},
        {"role": "arn:aws:iam::123456789012:role/R"},
        {"volume": "40"},
        {"region": "eu-west-1"},
        {"env": ["ALGORUN_TOKEN=new-for-each-job"]},
    ):
        assert made(**changed).sha256 == same.sha256, changed


@pytest.mark.parametrize(
    ("now", "difference"),
    [
        (lambda: made("train.py", "--lr", "0.2"), 'arguments: were ["--lr", "0.1"], are ["--lr", "0.2"]'),
        (lambda: made("package/main.py", "--lr", "0.1"), 'program: was "train.py", is "package/main.py"'),
        (lambda: made(hosts="2"), "hosts: was 1, is 2"),
        (lambda: made(slots="2"), "slots: was absent, is 2"),
        (lambda: made(instance="ml.p3.2xlarge"), 'instance: was "ml.m5.xlarge", is "ml.p3.2xlarge"'),
        (lambda: made(hyperparameters=["lr=0.1"]), 'hyperparameters.lr: was absent, is "0.1"'),
        (lambda: made(hyperparameters=["api_key=hunter2"]), "hyperparameters.api_key is new"),
        (lambda: made(env=["SEED=1"]), "environment: SEED is new"),
        (lambda: made(known=facts({"1.png": "10 e1"})), "in.train: 2.png is gone"),
        (lambda: made(known=facts({"1.png": "10 e1", "2.png": "10 e3"})), "in.train: 2.png has changed"),
        (lambda: made(known=facts({"1.png": "10 e1", "2.png": "10 e2", "3": "1 e"})), "in.train: 3 is new"),
        (
            lambda: made(known=facts(job="p-data-0002-abc", made="f1")),
            "in.val: is now what p-data-0002-abc left; it was p-data-0001-abc",
        ),
        (
            lambda: made(known=facts(image="x@sha256:1")),
            f"image: was {FACTS.image}, is x@sha256:1",
        ),
    ],
)  # fmt: skip
def test_what_changes_a_result_is_named(now, difference):
    assert differences(made(), now()) == (difference,)
    assert made().sha256 != now().sha256


def test_of_long_arguments_only_the_words_around_the_change_are_shown():
    many = [f"--x{n}" for n in range(50)]
    before, now = made("train.py", *many, "--lr", "0.1", *many), made("train.py", *many, "--lr", "1", *many)
    assert differences(before, now) == ('arguments: were ["--lr", "0.1"], are ["--lr", "1"]',)
    (text,) = differences(made("train.py", "a", "x" * 5000), made("train.py", "a", "y" * 5000))
    assert len(text) < 300


def test_values_of_variables_and_secrets_are_kept_as_hashes():
    kept = json.dumps(made(env=["TOKEN=hunter2", "A=plainvalue"], hyperparameters=["password=hunter3"]).to_json())
    for secret in ("hunter2", "hunter3", "plainvalue"):
        assert secret not in kept
    assert made(env=["A=x"]).groups["environment"]["A"] != made(env=["B=x"]).groups["environment"]["B"]


def test_nothing_is_equal_to_what_nobody_could_read():
    unread = dataclasses.replace(facts(), contents={}, unread={SOURCE: "may not be listed"})
    found = made(known=unread)
    assert found.sha256 == ""
    assert differences(made(), found) == differences(found, made()) == ("in.train: may not be listed",)
    assert differences(found, made(known=unread)) == ("in.train: may not be listed",)


def test_of_another_source_the_option_says_enough():
    now = made(**{"in": ["train=s3://b-ucket/images,shard", "val=task:data/state"]})
    assert differences(made(), now)[0] == f'in.train: was "{SOURCE}", is "{SOURCE},shard"'
    assert 'in.val: was "task:data/output/val", is "task:data/state"' in differences(made(), now)


def test_it_survives_its_file():
    found = made(env=["A=b"])
    again = from_json(json.loads(json.dumps(found.to_json())))
    assert again.sha256 == found.sha256
    assert differences(again, found) == ()
    assert from_json({**found.to_json(), "format": 2}) is None


@pytest.mark.parametrize("value", [[], {}, {"format": 1, "groups": []}, {"format": 1, "groups": {}}])
def test_another_file_is_no_fingerprint(value):
    with pytest.raises((ValueError, KeyError, TypeError)):
        from_json(value)


def test_many_files_are_kept_as_one_hash(monkeypatch):
    monkeypatch.setattr(fingerprint, "MOST_ROWS", 3)
    before, now = (Fingerprint({"in.x": rows((f"{n}", text) for n in range(4))}) for text in ("a", "b"))
    assert len(before.groups["in.x"]) == 1
    assert before.sha256 != now.sha256
    assert differences(before, now) == ("in.x: files have changed; there are too many to tell which",)


@pytest.mark.parametrize(
    "words", [("--api-key", "{}", "--lr", "1"), ("--api-key={}", "--lr", "1"), ("lr=1", "model.api_key={}")]
)
def test_a_difference_shows_no_secret_of_the_arguments(words):
    before, now = (made("train.py", *(word.format(key) for word in words)) for key in ("old-key", "new-key"))
    (text,) = differences(before, now)
    assert text.startswith("arguments: were ")
    assert "***" in text
    assert "-key" not in text.replace("--api-key", "")


def test_a_difference_shows_nothing_of_a_shell_line():
    """A secret may stand anywhere in it: as a variable, an option, a header."""
    lines = [json.dumps(f"HF_TOKEN={key} curl -H 'Bearer {key}'") for key in ("hf_old", "hf_new")]
    before, now = (Fingerprint({"options": {"shell": line}}) for line in lines)
    assert differences(before, now) == ("shell has changed",)
    assert differences(before, Fingerprint({"options": {}})) == ("shell is gone",)
    assert differences(Fingerprint({"options": {}}), now) == ("shell is new",)
