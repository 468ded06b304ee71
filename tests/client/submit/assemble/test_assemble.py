"""Requests: golden files, and what is refused before anything is uploaded."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from algorun.common.errors import UserError
from algorun_client.aws.service_model import input_shape
from algorun_client.files.inputs import HashedFile
from algorun_client.request import codec, limits
from algorun_client.request.model import Kind
from algorun_client.submit.look_up.facts import Facts, Listed, Upstream
from algorun_client.submit.read.material import fingerprint
from algorun_client.submit.read.program import started
from tests.client.submit.read.test_make_spec import CLIENT_MD
from tests.client.submit.specs import FACTS, IMAGE, request, spec

GOLDEN = Path(__file__).parents[3] / "golden" / "requests"
BUCKET = FACTS.bucket
SOURCES = {"s3://b-ucket/images": Listed(uri="s3://b-ucket/images/", objects=9)}
UPSTREAM = {
    "data": Upstream(kind=Kind.PROCESSING, number=3, job="x"),
    "first": Upstream(kind=Kind.TRAINING, number=2, job="p-first-0002-abc"),
}
FULL = dataclasses.replace(FACTS, sources=SOURCES, upstreams=UPSTREAM)
NETWORK = {"subnets": "subnet-1,subnet-2", "security_groups": ["sg-1"], "kms_key": "key-1", "network_isolation": True}
EXAMPLES = {
    "one-line": lambda: request(
        spec("train.py", "--epochs", "10", hosts="3", instance="ml.g5.12xlarge", per_gpu=True, **{"in": ["train=s3://b-ucket/images,shard"]}), FULL
    ),
    "job-file": lambda: request(spec(toml=CLIENT_MD, task="train"), FULL, 12, names=("main.py",)),
    "everything": lambda: request(
        spec(
            "train.py", project="vision", task="big", bucket="my-bucket", prefix="team/a", instance_groups=["gpu=ml.p4d.24xlargex2", "cpu=ml.m5.largex1"],
            tensorboard=True, engine="torchrun", slots="8", restarts="2", retries="3", keep_alive="1h", max_run="2d", tags=["team=vision"],
            env=["A=b"], metrics=["my:loss=loss ([0-9.]+)"], hyperparameters=["mp_parameters={}"],
            **{"in": ["train=./data", "old=task:first/model,extract", "val=task:data/output/val", "ckpt=task:first/state"]}, **NETWORK,
        ),
        dataclasses.replace(FULL, bucket=None),
        train=["a/1.png", "b/2.png"],
    ),
    "processing": lambda: request(
        spec("bash", "download.sh", "a b", kind="processing", hosts="2", task="data", max_run="1h", **{"in": ["raw=s3://b-ucket/images,shard,extract"]}), FULL
    ),
    "processing-outputs": lambda: request(
        spec("package/main.py", kind="processing", out=["train", "val"], engine="torchrun", layout="2x4", tags=["a=b"], **NETWORK), FULL
    ),
    "file-systems": lambda: request(
        spec("train.py", **{"in": ["train=fsx:fs-0123456789abcdef0/bv5mzbmv/images", "words=efs:fs-01234567"]}, **NETWORK), FULL
    ),
    "unknown": lambda: request(
        spec("ddp", "--epochs", "1", role="SageMakerRole", **{"in": ["train=s3://b-ucket/images", "old=task:first/model"]}), Facts(), None, names=()
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def shapes():
    return {kind: input_shape(kind) for kind in Kind}


@pytest.mark.parametrize("name", EXAMPLES)
def test_requests_are_as_their_golden_files(name, shapes):
    made = EXAMPLES[name]()
    file = GOLDEN / f"{name}.json"
    text = json.dumps(codec.to_json(made), indent=1) + "\n"
    assert text == file.read_text(), f"if this is meant: write it to {file}"
    limits.check(shapes[made.kind], made.create, made.unknown)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "unknown"])
def test_boto3_takes_them(name):
    """Its own check of types and required fields."""
    from botocore.validate import ParamValidator

    made = EXAMPLES[name]()
    report = ParamValidator().validate(dict(made.create), input_shape(made.kind))
    assert not report.has_errors(), report.generate_report()


# -- what is refused -------------------------------------------------------------------------------------------------

HUNDRED = [f"h{number}=1" for number in range(101)]
REFUSED = [
    ({"metrics": [f"m{number}=x" for number in range(41)]}, "--metric: 41 definitions; allowed: up to 40; fix: drop 1"),
    ({"metrics": ["m=("]}, "--metric m: .* is not a regular expression"),
    ({"metrics": ["m=" + "x" * 501]}, "--metric: has 501 characters; allowed: 1 to 500 characters; fix: 1 too many"),
    ({"hyperparameters": HUNDRED}, "--hyperparameter: has 103 entries; allowed: up to 100 entries; fix: 3 too many"),
    ({"hyperparameters": ["a=" + "x" * 2501]}, "--hyperparameter a: has 2501 characters; allowed: up to 2500 characters"),
    ({"hyperparameters": ["algorun_slots=2"]}, "--hyperparameter algorun_slots: algorun sets it from the options; fix: use --slots"),
    ({"env": [f"A{number}=1" for number in range(99)]}, "--env: has 101 entries; allowed: up to 100 entries"),
    ({"env": ["A=" + "x" * 513]}, "--env A: has 513 characters; allowed: up to 512 characters"),
    ({"env": ["A=" + "x" * 257], "kind": "processing"}, "--env A: has 257 characters; allowed: up to 256"),
    ({"env": ["ALGORUN_REQUEST_ID=1"]}, "--env ALGORUN_REQUEST_ID: algorun sets it"),
    ({"tags": [f"t{number}=1" for number in range(51)]}, "--tag: has 51 entries; allowed: up to 50"),
    ({"tags": ["a=b?c"]}, "--tag: 'b.c' has characters that SageMaker refuses"),
    ({"tags": ["aws:x=1"]}, "--tag aws:x: AWS keeps names"),
    ({"in": [f"c{number}=s3://b-ucket/x" for number in range(21)]}, "--in: has 21 entries; allowed: 1 to 20"),
    ({"in": [f"c{number}=s3://b-ucket/x" for number in range(10)], "kind": "processing"}, "--in: has 11 entries; allowed: up to 10"),
    ({"out": [f"o{number}" for number in range(11)], "kind": "processing"}, "--out: has 11 entries; allowed: up to 10"),
    ({"out": ["x"]}, "--out: is for processing tasks"),
    ({"instance": "ml.g5.12xlage"}, "--instance: 'ml.g5.12xlage' is unknown; allowed: .*; fix: did you mean ml.g5.12xlarge"),
    ({"instance": "ml.g5.12xlarge", "volume": "100"}, "--volume: ml.g5.12xlarge has disks of a fixed size"),
    ({"hosts": "101", "kind": "processing"}, "--hosts: 101 is out of range; allowed: 1 to 100"),
    ({"keep_alive": "7h"}, "--keep-alive: 25200 is out of range; allowed: up to 21600"),
    ({"subnets": ["subnet-1"]}, "--security-groups: is absent, and a VPC needs subnets and security groups"),
    ({"security_groups": ["sg-1"]}, "--subnets: is absent"),
    ({"instance_groups": [f"g{number}=ml.m5.largex1" for number in range(6)]}, "--instance-group: has 6 entries; allowed: up to 5"),
    ({"kind": "processing", "spot": True}, "--spot: is for training tasks"),
    ({"kind": "processing", "tensorboard": True}, "--tensorboard: is for training tasks"),
    ({"kind": "processing", "retries": "2"}, "--retries: is for training tasks"),
    ({"kind": "processing", "in": ["a=s3://b-ucket/x,mode=fastfile"]}, "--in a: mode=fastfile is for training tasks"),
    ({"kind": "processing", "in": ["train=s3://b-ucket/x"], "out": ["train"]}, "--out train: an input of this task has this name; allowed: different names"),
    ({"kind": "processing", "in": ["a=s3://b-ucket/x"], "out": ["code"]}, "--out code: the program's code is an input of this name"),
    ({"kind": "processing", "in": ["output=s3://b-ucket/x"]}, "--in output: 'output' is the name of this task's output; .* fix: choose another name, or name the outputs"),
    ({"hosts": "12", "in": ["train=s3://b-ucket/images,shard"]}, "--in train: shard: 9 objects for 12 hosts leave paid hosts without data"),
    ({"hosts": "3", "in": ["train=./data,shard"]}, "--in train: shard: 1 objects for 3 hosts"),
    ({"in": ["code=./data"]}, "--in code: 'code' is the input with the program's code"),
    ({"in": ["a=task:first/output/x"]}, "--in a: 'x' lies inside an archive: 'first' is a training task; fix: a=task:first/output,extract"),
    ({"in": ["a=task:data/model"]}, "--in a: task 'data' is a processing task: it leaves no model"),
    ({"per_host": True, "slots": "4"}, "--per-host: contradicts 4 slots"),
    ({"max_cost": "0"}, "--max-cost: '0' is not an amount; allowed: a number above 0"),
    ({"max_cost": "nan"}, "--max-cost: 'nan' is not an amount"),
    ({"max_cost": "5", "instance": "ml.m5.large"}, "--max-cost: the price of ml.m5.large is unknown; fix: price = "),
    ({"role": "r", "max_run": "10000d", "kind": "processing"}, "--max-run: .* is out of range; allowed: 1 to 777600"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "text"), REFUSED, ids=[text[:50] for _, text in REFUSED])
def test_what_sagemaker_would_refuse_is_refused_first(options, text, shapes):
    def checked():
        made = request(spec("train.py", **options), FULL)
        limits.check(shapes[made.kind], made.create, made.unknown)

    with pytest.raises(UserError, match=text.replace("(", r"\(").replace("?", r"\?")) as error:
        checked()
    assert error.value.code == 64
    assert error.value.allowed or error.value.fix


@pytest.mark.parametrize(
    ("missing", "text"),
    [("image", "--image: no image is named; fix: --image"), ("instance", "--instance: no instance type is named")],
)
def test_image_and_instance_are_needed(missing, text):
    from algorun_client.submit.assemble.assemble import assemble
    from algorun_client.submit.read.material import Material

    task = spec(
        "ddp", **{key: value for key, value in {"image": IMAGE, "instance": "ml.m5.large"}.items() if key != missing}
    )
    with pytest.raises(UserError, match=text):
        assemble(task, FACTS, Material(started=started(task.program, ())), 1)


def test_a_role_and_an_image_that_sagemaker_would_not_take(shapes):
    made = request(spec("train.py"), dataclasses.replace(FACTS, role_arn="arn:aws:iam::12:role/x"))
    with pytest.raises(UserError, match="--role: .* has characters"):
        limits.check(shapes[Kind.TRAINING], made.create)
    made = request(spec("train.py"), dataclasses.replace(FACTS, image="x" * 256))
    with pytest.raises(UserError, match="--image: has 256 characters"):
        limits.check(shapes[Kind.TRAINING], made.create)


def test_an_image_that_is_too_old():
    old = dataclasses.replace(FACTS, image_format=0)
    assert request(spec("train.py", "1"), old).create  # plain hyperparameters, which 0.1.0 knows
    for task, what in (
        (spec("train.py", "x" * 3000), "arguments of this length"),
        (spec("train.py", cwd="state"), "--cwd state"),
        (spec("train.py", **{"in": ["a=s3://b-ucket/x,extract"]}), "inputs with extract"),
        (spec("train.py", kind="processing"), "processing jobs with code"),
    ):
        with pytest.raises(UserError, match=f"--image: .* is too old for {what}; fix: name an image of this version"):
            request(task, old)


# -- the rest --------------------------------------------------------------------------------------------------------


def test_our_metrics_fill_up_and_those_left_out_are_named():
    made = request(spec("train.py", metrics=[f"m{number}=x" for number in range(35)]))
    names = [each["Name"] for each in made.create["AlgorithmSpecification"]["MetricDefinitions"]]
    assert len(names) == 40
    assert names[:35] == [f"m{number}" for number in range(35)]
    assert made.warnings == (
        "--metric: SageMaker takes 40; left out of algorun's own: train:perplexity, validation:perplexity, "
        "train:tokens_per_s, train:learning_rate, train:data_wait, train:peak_memory_mib, "
        "job:goodput, job:samples_per_s, job:mfu, job:data_wait, job:cost, "
        "train:step_loss, train:epoch_loss, train:step_perplexity, train:epoch_perplexity",
    )


def test_a_metric_of_the_user_replaces_ours_of_the_same_name():
    made = request(spec("train.py", metrics=["train:loss=mine ([0-9]+)"]))
    listed = made.create["AlgorithmSpecification"]["MetricDefinitions"]
    assert [each["Regex"] for each in listed if each["Name"] == "train:loss"] == ["mine ([0-9]+)"]


def test_a_variable_that_looks_like_a_secret_warns():
    made = request(spec("train.py", env=["HF_TOKEN=x", "TOKENIZER=y"]))
    assert [warning.split(":")[0] for warning in made.warnings] == ["--env HF_TOKEN"]
    assert "x" not in made.warnings[0].replace("exact", "").split()


def test_code_comes_by_channel_to_a_host_without_network():
    made = request(spec("train.py", network_isolation=True)).create
    assert made["InputDataConfig"][-1]["DataSource"]["S3DataSource"]["S3Uri"].endswith(
        "/code/" + "c0de" * 16 + ".tar.gz"
    )
    assert made["HyperParameters"]["sagemaker_submit_directory"] == "/opt/ml/input/data/code/" + "c0de" * 16 + ".tar.gz"


def test_the_same_request_has_the_same_identity_and_another_has_not():
    def of(*words, number=1, **options):
        return request(spec(*words, **options), number=number).create["Environment"]["ALGORUN_REQUEST_ID"]

    assert of("train.py", "1") == of("train.py", "1")
    assert (
        len(
            {
                of("train.py"),
                of("train.py", "1"),
                of("train.py", number=2),
                of("train.py", env=["A=1"]),
                of("train.py", hosts="2"),
            }
        )
        == 5
    )


def test_the_commit_of_the_code_is_no_part_of_the_request_s_identity():
    """The same files of another commit are the same request: it joins the running job, and the task stays done."""

    def of(commit, **options):
        return request(spec("train.py", **options), commit=commit)

    none, first, second = of(""), of("1a2b"), of("3c4d")
    assert "ALGORUN_CODE_COMMIT" not in none.create["Environment"]
    assert first.create["Environment"] == {**none.create["Environment"], "ALGORUN_CODE_COMMIT": "1a2b"}
    assert none.fingerprint == first.fingerprint == second.fingerprint
    own = of("1a2b", env=["ALGORUN_CODE_COMMIT=of our CI"]).create["Environment"]
    assert own["ALGORUN_CODE_COMMIT"] == "of our CI"


def test_the_price_of_the_job_file_reaches_the_job_and_is_no_part_of_its_identity():
    def of(toml="", **options):
        made = request(spec("train.py", toml=toml, instance="ml.g5.xlarge", **options)).create["Environment"]
        return made.get("ALGORUN_PRICE"), made["ALGORUN_REQUEST_ID"]

    price = 'price = { "ml.g5.xlarge" = 1.41, "ml.m5.large" = 0.1 }'
    unpriced, identity = of()
    assert unpriced is None
    assert of(price) == ("1.41", identity)
    assert of(price, hosts="4")[0] == "1.41"
    assert of(price, env=["ALGORUN_PRICE=3"])[0] == "3"
    assert of('price = { "ml.g5.xlarge" = 0 }') == (None, identity)
    assert of('price = { "ml.m5.large" = 0.1 }') == (None, identity)
    assert of(price, where="local")[0] is None


def test_hosts_of_several_types_have_their_mean_price():
    groups = 'price = { "ml.g5.xlarge" = 2, "ml.m5.large" = 0.5 }'
    made = request(spec("train.py", toml=groups, instance_groups=["a=ml.g5.xlargex2", "b=ml.m5.largex1"]))
    assert made.create["Environment"]["ALGORUN_PRICE"] == "1.5"


def test_a_job_with_as_many_variables_as_sagemaker_takes_goes_without_its_commit(shapes):
    made = request(spec("train.py", env=[f"A{number}=1" for number in range(98)]), commit="1a2b")
    limits.check(shapes[Kind.TRAINING], made.create)
    assert len(made.create["Environment"]) == 100


def test_without_credentials_the_request_names_what_it_cannot_know():
    made = EXAMPLES["unknown"]()
    assert made.unknown == (
        "AlgorithmSpecification.TrainingImage", "CheckpointConfig.S3Uri", "InputDataConfig[0].DataSource.S3DataSource.S3Uri",
        "InputDataConfig[1].DataSource.S3DataSource.S3Uri", "OutputDataConfig.S3OutputPath", "RoleArn", "TrainingJobName",
        "Environment.ALGORUN_REQUEST_ID",
    )  # fmt: skip
    assert EXAMPLES["one-line"]().unknown == ()


def test_local_inputs_are_uploads_and_their_folders_mirrors():
    made = EXAMPLES["everything"]()
    base = "s3://my-bucket/team/a/vision/big"
    (folder,) = made.mirrors
    assert re.fullmatch(rf"{base}/input/train/[0-9a-f]{{32}}/", folder)
    assert [each.uri for each in made.uploads][1:] == [f"{folder}a/1.png", f"{folder}b/2.png"]
    assert made.create["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"] == folder


def test_the_folder_of_an_input_stands_for_its_content():
    def file(name, sha256):
        return HashedFile(name=name, path=Path(name), size=1, sha256=sha256)

    one = [file("a", "1"), file("b", "2")]
    assert fingerprint(one) == fingerprint(one[::-1])
    others = ([file("a", "2"), file("b", "1")], [file("a", "1")], [file("ab", "1"), file("b", "2")], [])
    assert len({fingerprint(files) for files in (one, *others)}) == 5


def test_a_key_that_s3_cannot_hold():
    with pytest.raises(UserError, match="--in t: .* is too long for a key in S3"):
        request(spec("train.py", **{"in": ["t=./data"]}), t=["x" * 1010])


PRICED = """
price = { "ml.g5.xlarge" = 2.0, "ml.m5.large" = 0.5 }
instance = "ml.g5.xlarge"
hosts = 3
max_run = "10h"
[task.train]
run = ["train.py"]
"""


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, 60.0),
        ({"hosts": "1"}, 20.0),
        ({"max_run": "90m"}, 9.0),
        ({"spot": True}, 60.0),  # spot saves, but nobody promises how much
        ({"retries": "5"}, 60.0),  # --max-run bounds all attempts together
        ({"keep_alive": "30m"}, 63.0),
        ({"instance": "ml.m5.large", "kind": "processing"}, 15.0),
    ],
    ids=str,
)
def test_max_cost_refuses_what_could_cost_more_and_nothing_else(options, most):
    def sent(limit):
        return request(spec(toml=PRICED, task="train", max_cost=limit, **options))

    assert sent(str(most)).create
    with pytest.raises(
        UserError, match=rf"--max-cost: .* may cost {most:.2f} \(.* an hour\); allowed: up to {most - 0.01:.2f}; fix: "
    ):
        sent(str(most - 0.01))


def test_the_time_that_fits_is_one_that_is_taken():
    with pytest.raises(UserError) as error:
        request(spec(toml=PRICED, task="train", max_cost="7"))
    fits = re.search(r"fix: --max-run (\w+)", str(error.value))[1]
    assert request(spec(toml=PRICED, task="train", max_cost="7", max_run=fits)).create


def test_max_cost_counts_every_group_and_nothing_on_this_machine():
    groups = {"instance_groups": ["a=ml.g5.xlargex1", "b=ml.m5.largex2"]}
    toml = PRICED.replace('instance = "ml.g5.xlarge"', "").replace("hosts = 3", "")
    with pytest.raises(UserError, match=r"1 x ml.g5.xlarge, 2 x ml.m5.large for --max-run .* may cost 30.00"):
        request(spec(toml=toml, task="train", max_cost="29", **groups))
    assert request(spec(toml=toml, task="train", max_cost="1", where="local")).create
