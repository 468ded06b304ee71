"""On other hosts a bundled entrypoint keeps its global batch, or nothing is created."""

from __future__ import annotations

import dataclasses
import json

import pytest

from algorun.common.errors import UserError
from algorun_client.request.fingerprint import differences
from tests.client.submit.specs import request, spec

P4D, G5, ONE = "ml.p4d.24xlarge", "ml.g5.12xlarge", "ml.g5.2xlarge"  # 8, 4 and 1 GPUs


def sent(choice, *words, instance=f"{P4D}x2,{G5}x2", names=("train.py",), **options):
    return request(spec(*words, instance=instance, **options).of_choice(choice), names=names)


def args(made):
    return json.loads(made.create["HyperParameters"]["algorun_args"])


def refused(*words, **options):
    with pytest.raises(UserError) as error:
        sent(1, *words, **options)
    return str(error.value)


@pytest.mark.parametrize(
    ("instance", "words", "expected"),
    [
        (f"{P4D}x2,{G5}x2", [], ["--accumulation", "2"]),
        (f"{P4D}x2,{G5}x2", ["--lr", "1"], ["--lr", "1", "--accumulation", "2"]),
        (f"{P4D}x2,{G5}x2", ["--accumulation", "3", "--lr", "1"], ["--accumulation", "6", "--lr", "1"]),
        (f"{P4D}x2,{G5}x2", ["--accumulation=3"], ["--accumulation=6"]),
        (f"{P4D}x2,{ONE}x4", ["--batch-size", "8"], ["--batch-size", "8", "--accumulation", "4"]),
        (f"{P4D}x2,{G5}x4", [], []),  # as many ranks
        (f"{G5}x2,{P4D}x2", ["--accumulation", "4"], ["--accumulation", "2"]),
        (f"{G5}x2,{P4D}x2", ["--batch-size", "8"], ["--batch-size", "4", "--accumulation", "1"]),
        (f"{G5}x3,{P4D}x1", ["--batch_size", "8", "--accumulation", "2"], ["--batch_size", "8", "--accumulation", "3"]),
    ],
)
def test_ddp_has_another_accumulation(instance, words, expected):
    first = sent(0, "ddp", *words, instance=instance)
    assert args(first) == words
    second = sent(1, "ddp", *words, instance=instance)
    assert args(second) == expected
    gpus = {P4D: 8, G5: 4, ONE: 1}
    batches = []
    for made in (first, second):
        resources, given = made.create["ResourceConfig"], [word.replace("=", " ") for word in args(made)]
        flat = " ".join(given).replace("_", "-").split()
        value = {name: int(flat[flat.index(name) + 1]) if name in flat else other
                 for name, other in (("--accumulation", 1), ("--batch-size", 8))}  # fmt: skip
        ranks = gpus[resources["InstanceType"]] * resources["InstanceCount"]
        batches.append(ranks * value["--accumulation"] * value["--batch-size"])
    assert batches[0] == batches[1]


def test_the_fingerprint_says_which_it_was():
    first, second = sent(0, "ddp"), sent(1, "ddp")
    assert differences(first.fingerprint, second.fingerprint) == (
        'arguments: were [], are ["--accumulation", "2"]',
        'instance: was "ml.p4d.24xlarge", is "ml.g5.12xlarge"',
    )


def test_hyperparameters_are_options_too():
    made = sent(1, "ddp", hyperparameters=["batch-size=8", "accumulation=2"])
    assert made.create["HyperParameters"]["accumulation"] == "4"
    assert sent(1, "ddp", hyperparameters=["lr=1"]).create["HyperParameters"]["accumulation"] == "2"


def test_slots_count_as_ranks():
    assert args(sent(1, "ddp", slots="2")) == []
    assert args(sent(1, "ddp", slots="2", instance=f"{P4D}x2,{G5}x1")) == ["--accumulation", "2"]


def test_a_pipeline_keeps_the_size_of_its_microbatches():
    words = ("pipeline", "--pp", "4", "--batch-size", "16", "--microbatches", "8")
    assert args(sent(1, *words)) == ["--pp", "4", "--batch-size", "32", "--microbatches", "16"]
    assert args(sent(1, *words, instance=f"{P4D}x1,{P4D}x2"))[2:] == ["--batch-size", "8", "--microbatches", "4"]


@pytest.mark.parametrize(
    ("words", "instance", "text"),
    [
        (("pipeline", "--pp", "8"), f"{P4D},{G5}", "--instance: 1 x ml.g5.12xlarge has 4 ranks, which are no pipelines of --pp 8; allowed: a multiple of 8 ranks"),
        (("pipeline", "--pp", "4", "--tp", "2"), f"{P4D},{G5}", "--instance: 1 x ml.g5.12xlarge has 4 ranks, which are no pipelines of --pp 4 x --tp 2; allowed: a multiple of 8 ranks"),
        (("ddp", "--tp", "8"), f"{P4D},{G5}", "--instance: 1 x ml.g5.12xlarge has 4 ranks, which are no tensor groups of --tp 8; allowed: a multiple of 8 ranks"),
        (("pipeline", "--pp", "4"), f"{P4D}x2,{G5}x2", "cannot keep the global batch of 16 ranks: --batch-size, --microbatches must be given"),
        (("pipeline",), f"{P4D}x2,{G5}x2", "--pp, --batch-size, --microbatches must be given"),
        (("pipeline", "--pp", "4", "--batch-size", "5", "--microbatches", "5"), f"{P4D}x1,{P4D}x2", "--batch-size 5 x 8 ranks is no multiple of 16 ranks"),
        (("ddp",), f"{P4D}x1,{G5}x3", "2 x"),
        (("ddp", "--config", "c.toml"), f"{P4D}x2,{G5}x2", "--accumulation may stand in the file of --config; allowed: hosts on which ddp has the same"),
        (("ddp",), f"{P4D}x2,ml.q9.xlarge", "nobody knows how many GPUs ml.q9.xlarge has, and so how many ranks a host gets; fix: say it: --slots N"),
        (("ddp", "--lora-targets", "x" * 3000), f"{P4D}x2,{G5}x2", "arguments of this length are not changed"),
    ],
)  # fmt: skip
def test_hosts_that_cannot_keep_it_are_refused(words, instance, text):
    if text == "2 x":
        text = "3 x ml.g5.12xlarge (12 ranks) cannot keep the global batch of 8 ranks: --accumulation 1 x 8 ranks is no multiple of 12"
    assert text in refused(*words, instance=instance)


def test_the_first_hosts_have_to_hold_the_pipelines_too():
    with pytest.raises(UserError, match="1 x ml.g5.12xlarge has 4 ranks, which are no pipelines of --pp 8"):
        sent(0, "pipeline", "--pp", "8", instance=f"{G5},{P4D}")


def test_a_program_of_the_user_s_keeps_its_arguments():
    made = sent(1, "train.py", "--accumulation", "1", per_gpu=True)
    assert args(made) == ["--accumulation", "1"]
    assert made.create["ResourceConfig"]["InstanceCount"] == 2


def test_the_hosts_of_a_processing_task_may_be_others():
    made = sent(1, "train.py", kind="processing")
    assert made.create["ProcessingResources"]["ClusterConfig"]["InstanceType"] == G5


def test_one_kind_of_hosts_is_sent_as_ever():
    one = spec("ddp", instance=P4D, hosts="2")
    assert one.of_choice(0) is one
    both = spec("ddp", instance=f"{P4D}x2,{G5}x2").of_choice(0)
    assert dataclasses.replace(both, resources=dataclasses.replace(both.resources, first=None)) == one
    assert request(one).create == request(both).create
