"""The command line of `submit`: its words, and where they end."""

from __future__ import annotations

import argparse
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun_client.submit.read import job_file, layers, make_spec, submit_options
from algorun_client.submit.read.job_file import JobFile
from algorun_client.submit.read.spec import Where
from tests.conftest import ROOT, examples

EVERYTHING = (
    "--project p --task t --bucket b --prefix x/y --where local --profile me --region eu-west-1 --image i --role r --kind training "
    "--code src --add lib --add lib2 --cwd sub --engine torchrun -j 2x4 --per-host --share-nothing --restarts 1 --env A=1 --env B "
    "--hyperparameter h=1 --in train=./data,shard --in val=s3://bucket/v --metric m=x --tensorboard --tag k=v --instance ml.m5.large --volume 10 "
    "--max-run 1h --spot --max-wait 2h --subnets a,b --security-groups c --network-isolation --kms-key k"
)


def parsed(text):
    words, program = submit_options.split(text.split() if isinstance(text, str) else text)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    submit_options.add_options(parser)
    options = parser.parse_args(words)
    options.program = program
    return options


def spec(text, environ=None):
    options = parsed(text)
    return make_spec.make(
        JobFile(), submit_options.layer(options, "/here"), options.program, folder="/here", environ=environ or {}
    )


def test_every_flag_arrives():
    made = spec(f"{EVERYTHING} train.py --epochs 10 --where aws", {"B": "2"})
    assert made.program.args == ("--epochs", "10", "--where", "aws")
    assert (made.project, made.task, made.bucket, made.prefix, made.where, made.profile, made.region) == (
        "p",
        "t",
        "b",
        "x/y",
        Where.LOCAL,
        "me",
        "eu-west-1",
    )
    assert (made.image, made.role, made.code, made.add, made.kms_key) == (
        "i",
        "r",
        "/here/src",
        ("/here/lib", "/here/lib2"),
        "k",
    )
    assert (
        made.launch.cwd,
        made.launch.engine,
        made.launch.slots,
        made.launch.per_host,
        made.launch.share_nothing,
        made.launch.restarts,
    ) == ("sub", "torchrun", 4, True, True, 1)
    assert (made.env, made.hyperparameters, made.metrics, made.tags) == (
        {"A": "1", "B": "2"},
        {"h": "1"},
        {"m": "x"},
        {"k": "v"},
    )
    assert [(each.name, each.source, each.shard) for each in made.inputs] == [
        ("train", "/here/data", True),
        ("val", "s3://bucket/v", False),
    ]
    resources = made.resources
    assert (
        resources.instance,
        resources.hosts,
        resources.volume_gb,
        resources.max_run_s,
        resources.spot,
        resources.max_wait_s,
    ) == ("ml.m5.large", 2, 10, 3600, True, 7200)
    assert (made.network.subnets, made.network.security_groups, made.network.isolation) == (("a", "b"), ("c",), True)


def test_every_key_of_the_job_file_has_a_flag():
    flags = {flag.key for group in submit_options.FLAGS.values() for flag in group}
    assert {*flags, *submit_options.PLACE, "run"} == {*layers.SINGLE, *layers.TABLES}


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["--spot", "train.py", "--spot"], ["--spot"]),
        (["--hosts", "3", "train.py", "-h"], ["--hosts", "3"]),
        (["--hosts=3", "train.py"], ["--hosts=3"]),
        (["-j2x4", "train.py"], ["-j2x4"]),
        (["-j", "2x4", "--dry-run", "--json", "train.py"], ["-j", "2x4", "--dry-run", "--json"]),
        (["--no-spot", "train.py"], ["--no-spot"]),
        (["-m", "package.main", "--lr", "1"], ["-m", "package.main"]),
        (["--shell", "echo 1", "--detach"], ["--shell", "echo 1", "--detach"]),
        (["--spot", "--", "-odd.py", "--", "x"], ["--spot"]),
    ],
)
def test_options_end_at_the_program(words, options):
    found, program = submit_options.split(words)
    rest = words[len(options) :]
    assert (found, program) == (options, rest[1:] if rest[:1] == ["--"] else rest)


def test_words_after_a_module_are_its_own():
    made = spec(["-m", "package.main", "--lr", "1"])
    assert (made.program.name, made.program.args) == ("package.main", ("--lr", "1"))


@given(st.lists(st.text(max_size=20), max_size=8))
@examples(200)
def test_words_of_the_program_are_never_read(words):
    assert submit_options.split(["--hosts", "2", "train.py", *words]) == (["--hosts", "2"], ["train.py", *words])


def test_a_flag_can_say_no_to_the_job_file():
    layer = submit_options.layer(parsed("--no-spot train.py"), "/here")
    assert layer.single["spot"].raw is False
    assert "network_isolation" not in layer.single


def test_the_page_shows_every_flag_and_key():
    page = (ROOT / "docs" / "submit.md").read_text()
    flags = [flag for group in submit_options.FLAGS.values() for flag in group]
    names = [name for flag in flags for name in flag.names or (layers.TABLES[flag.key],)]
    assert [name for name in names if not re.search(rf"`{re.escape(name)}\b", page)] == []
    table = page.partition("| flag | key |")[2].partition("\n\n")[0]
    spelled = {
        *re.findall(r"`([a-z_]+)", table),
        *(name.lstrip("-").replace("-", "_") for name in re.findall(r"--[a-z-]+", table)),
    }
    assert {*layers.SINGLE, *layers.TABLES} - {"layout", "task"} - spelled == set()


def test_the_job_file_of_the_page_is_one():
    page = (ROOT / "docs" / "submit.md").read_text()
    file = job_file.parse(page.split("```toml\n")[1].split("```")[0].encode(), "algorun.toml", "/here")
    for task in ("data", "train"):
        flags = layers.Layer({"task": layers.Given("--task", task, "/here")})
        assert make_spec.make(file, flags, (), folder="/here", environ={"WANDB_PROJECT": "x"}).project == "imagenet"


@pytest.mark.parametrize(
    "option",
    ["-e", "--cmd_line", "-p", "-b", "--ic", "--it", "-v", "--max_run_mins", "--max_wait_mins", "--no_spot", "-i", "--iis",
     "--iit", "--md", "--tag", "--download_state", "--force_running", "--clean_state"],
)  # fmt: skip
def test_the_page_tells_what_became_of_the_options_of_simple_sagemaker(option):
    page = (ROOT / "docs" / "submit.md").read_text()
    section = page.partition("## Come from simple-sagemaker")[2].partition("\n## ")[0]
    assert re.search(rf"[` ]{re.escape(option)}[` ]", section)
    assert "## What tests without AWS cannot show" in page
