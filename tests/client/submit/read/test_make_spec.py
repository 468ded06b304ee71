"""Job file and flags: who wins, what is refused, and that every refusal names option, value and fix."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from algorun.common.errors import UserError
from algorun_client.request.model import Kind
from algorun_client.submit.read.spec import SourceKind, Where
from tests.client.submit.specs import FOLDER, spec
from tests.conftest import examples

CLIENT_MD = """
project = "imagenet"
image = "ACCOUNT.dkr.ecr.REGION.amazonaws.com/algorun:0.2.0"
role = "SageMakerRole"
[task.data]
kind = "processing"
run = ["bash", "download.sh"]
instance = "ml.c5.4xlarge"
[task.train]
run = ["main.py", "--epochs", "10", "--resume", "checkpoint.pth.tar"]
per_gpu = true
cwd = "state"
hosts = 3
instance = "ml.g5.12xlarge"
spot = true
max_run = "12h"
in.train = { from = "task:data/output/data", extract = true }
metrics = { loss = "Loss ([0-9.e+-]+)" }
"""


def test_a_job_file_becomes_tasks():
    train = spec(toml=CLIENT_MD, task="train")
    assert (train.project, train.task, train.role, train.kind) == ("imagenet", "train", "SageMakerRole", Kind.TRAINING)
    assert (train.program.name, train.program.args[-1]) == ("main.py", "checkpoint.pth.tar")
    assert (train.resources.hosts, train.resources.max_run_s, train.resources.max_wait_s) == (3, 43_200, 86_400)
    assert (train.launch.cwd, train.metrics, train.code) == ("state", {"loss": "Loss ([0-9.e+-]+)"}, FOLDER)
    source = train.inputs[0]
    assert (source.name, source.kind, source.extract, source.shard) == ("train", SourceKind.TASK, True, False)
    assert (source.task.task, source.task.what, source.task.sub) == ("data", "output", "data")
    data = spec(toml=CLIENT_MD, task="data")
    assert (data.kind, data.resources.instance, data.program.name) == (Kind.PROCESSING, "ml.c5.4xlarge", "bash")


def test_flags_win_and_tables_are_joined():
    toml = """
    hosts = 2
    tags = { team = "vision", cost = "1" }
    in.val = "s3://bucket/val"
    [task.train]
    run = ["train.py"]
    hosts = 3
    tags = { cost = "2" }
    """
    made = spec(toml=toml, hosts="4", tags=["cost=3"], **{"in": ["train=s3://bucket/train"]})
    assert made.resources.hosts == 4
    assert made.tags == {"team": "vision", "cost": "3"}
    assert [each.name for each in made.inputs] == ["val", "train"]
    assert spec(toml=toml).resources.hosts == 3
    assert spec("train.py", toml=toml).resources.hosts == 3  # the program's name is the task's
    assert spec("other.py", toml=toml).resources.hosts == 2


def test_without_a_job_file_names_come_from_folder_and_program():
    made = spec("src/train.py", "--epochs", "10")
    assert (made.project, made.task, made.program.args, made.where) == (
        "vision",
        "train",
        ("--epochs", "10"),
        Where.AWS,
    )
    assert spec(shell="nvidia-smi").task == "shell"
    assert spec(module="package.main").task == "package-main"
    assert spec("--epochs", "3", module="package.main").task == "package-main"
    assert spec("--epochs", "3", module="package.main").program.args == ("--epochs", "3")


def test_a_program_of_the_command_line_replaces_that_of_the_job_file():
    toml = '[task.train]\nshell = "echo"\n'
    assert spec("train.py", toml=toml).program.name == "train.py"
    assert spec(toml='[task.x]\nrun = ["a.py"]\n', shell="echo hi", task="x").program.shell == "echo hi"


def test_the_callers_variable():
    made = spec("a.py", env=["HF_TOKEN", "A=b=c", "E="], environ={"HF_TOKEN": "x y"})
    assert made.env == {"HF_TOKEN": "x y", "A": "b=c", "E": ""}
    assert spec(toml='env = ["B", "A=1"]\n[task.a]\nrun = ["a.py"]', environ={"B": "2"}).env == {"B": "2", "A": "1"}


@pytest.mark.parametrize(
    ("text", "source", "shard", "fastfile", "extract"),
    [
        ("s3://bucket/a,b", "s3://bucket/a,b", False, False, False),
        ("s3://bucket/a,shard,mode=fastfile", "s3://bucket/a", True, True, False),
        ("s3://bucket/a,extract,shard", "s3://bucket/a", True, False, True),
        ("./data,mode=FILE", f"{FOLDER}/data", False, False, False),
        ("/abs/data", "/abs/data", False, False, False),
        ("task:data/state", "task:data/state", False, False, False),
    ],
)
def test_inputs(text, source, shard, fastfile, extract):
    made = spec("a.py", **{"in": [f"train={text}"]}).inputs[0]
    assert (made.source, made.shard, made.fastfile, made.extract) == (source, shard, fastfile, extract)


@pytest.mark.parametrize(
    ("text", "system", "identity", "folder"),
    [
        ("fsx:fs-0123456789abcdef0/fsx/data/a", "FSxLustre", "fs-0123456789abcdef0", "/fsx/data/a"),
        ("fsx:fs-0123456789abcdef0/bv5mzbmv/", "FSxLustre", "fs-0123456789abcdef0", "/bv5mzbmv"),
        ("efs:fs-01234567", "EFS", "fs-01234567", "/"),
        ("efs:fs-01234567/", "EFS", "fs-01234567", "/"),
        ("efs:fs-01234567/a b,c", "EFS", "fs-01234567", "/a b,c"),
    ],
)
def test_file_systems(text, system, identity, folder):
    made = spec("a.py", **{"in": [f"train={text}"]}).inputs[0]
    assert (made.kind, made.file_system.system.value) == (SourceKind.FILE_SYSTEM, system)
    assert (made.file_system.identity, made.file_system.folder) == (identity, folder)


@pytest.mark.parametrize(
    ("text", "seconds"), [("12h", 43_200), ("90m", 5_400), ("1d12h", 129_600), ("30s", 30), ("1h30m", 5_400)]
)
def test_durations(text, seconds):
    assert spec("a.py", max_run=text).resources.max_run_s == seconds


WRONG_FLAGS = [
    (
        {"max_run": "12"},
        "--max-run: '12' is not a duration; allowed: such as 12h, 90m or 1d12h; fix: 12s, if these are seconds",
    ),
    ({"max_run": "0h"}, "--max-run: '0h' is no time at all"),
    ({"hosts": "0"}, "--hosts: '0' is not a whole number from 1 to 10000"),
    ({"hosts": "3.5"}, "--hosts: '3.5' is not a whole number"),
    ({"hosts": "3", "layout": "2x4"}, "--hosts: 3 contradicts -j 2x4"),
    ({"slots": "3", "layout": "2x4"}, "--slots: 3 cannot be combined with -j 2x4"),
    ({"layout": "24"}, "'24' is not HOSTSxSLOTS"),
    ({"engine": "mpi"}, "--engine: 'mpi' is not an engine; allowed: native, torchrun, mpirun"),
    ({"kind": "trainig"}, "--kind: 'trainig' is unknown; allowed: training, processing; fix: did you mean 'training'?"),
    ({"max_wait": "2h"}, "--max-wait: only spot instances are waited for; fix: add --spot"),
    (
        {"spot": True, "max_run": "2h", "max_wait": "1h"},
        "--max-wait: 3600 s is less than --max-run (7200 s), which it includes",
    ),
    ({"spot": True, "keep_alive": "1h"}, "--keep-alive: spot instances cannot be kept"),
    ({"retries": "0"}, "--retries: '0' is not a whole number from 1 to 30"),
    ({"retries": "31"}, "--retries: '31' is not a whole number from 1 to 30"),
    ({"in": ["train"]}, "--in: 'train' is not NAME=SOURCE[,shard][,mode=fastfile][,extract]"),
    ({"in": ["t=s3://bucket/a,shrad"]}, "--in t: unknown word 'shrad'; allowed: .*; fix: did you mean 'shard'?"),
    (
        {"in": ["t=s3://bucket/a,extract,mode=fastfile"]},
        "--in t: extract needs files on the host's disk, and mode=fastfile leaves them in S3",
    ),
    (
        {"in": ["t=fsx://fs-0123456789abcdef0/m"]},
        "--in t: 'fsx://fs-0123456789abcdef0/m' is not an address in S3; allowed: .*fsx:fs-ID/",
    ),
    (
        {"in": ["t=fsx:/data"]},
        "--in t: 'fsx:/data': '' is not the ID of a file system; allowed: fsx:fs-ID/MOUNT_NAME/FOLDER",
    ),
    (
        {"in": ["t=efs:fs-0123ABCD/x"]},
        "--in t: .*'fs-0123ABCD' is not the ID of a file system; allowed: efs:fs-ID/FOLDER",
    ),
    (
        {"in": ["t=fsx:fs-0123456789abcdef0"]},
        "--in t: .* has no mount name after the ID; .*fix: its MountName is in the answer of",
    ),
    ({"in": ["t=fsx:fs-0123456789abcdef0/too-long-name/a"]}, "--in t: .* has no mount name after the ID"),
    ({"in": ["t=efs:fs-01234567/a/../b"]}, "--in t: .* is not a folder of a file system"),
    ({"in": ["t=efs:fs-01234567/a,shard"]}, "--in t: shard is not for efs:fs-01234567/a: every host sees all files"),
    (
        {"in": ["t=efs:fs-01234567/a,extract"]},
        "--in t: extract is not for .*: the file system is mounted read-only; fix: drop it",
    ),
    ({"in": ["t=efs:fs-01234567/a,mode=fastfile"]}, "--in t: mode=fastfile is not for"),
    ({"in": ["t=http://x/y"]}, "--in t: 'http://x/y' is not an address in S3"),
    ({"in": ["t=task:data/models"]}, "--in t: 'task:data/models' is not something of a task"),
    ({"in": ["t=task:data/output/../x"]}, "--in t: .* is not something of a task"),
    ({"in": ["a/b=s3://bucket/a"]}, "--in a/b: 'a/b' is not a name"),
    ({"in": ["a=x", "a=y"]}, "--in: 'a' is given twice"),
    ({"tags": ["team"]}, "--tag: 'team' is not KEY=VALUE"),
    ({"env": ["ABSENT"]}, "--env ABSENT: is not set in this shell; fix: export ABSENT, or --env ABSENT=VALUE"),
    ({"env": ["A-B=1"]}, "--env A-B: 'A-B' is not a variable's name"),
    ({"instance_groups": ["gpu=2"]}, "--instance-group gpu: '2' is not TYPExN; allowed: such as gpu=ml.g5.12xlargex2"),
    ({"instance_groups": ["gpu=ml.g5.xlargex2"], "hosts": "2"}, "--hosts: cannot be combined with instance groups"),
    ({"task": "a/b"}, "--task: 'a/b' is not a name; .*; fix: --task a-b"),
    ({"cwd": "../x"}, "--cwd: '../x' leads out of the code"),
    ({"prefix": "a//b"}, "--prefix: 'a//b' is not a prefix"),
    ({"shell": "echo"}, "--shell: cannot be combined with a program"),
]


@pytest.mark.parametrize(("options", "text"), WRONG_FLAGS)
def test_a_wrong_flag_is_one_error(options, text):
    with pytest.raises(
        UserError, match=text.replace("(", r"\(").replace(")", r"\)").replace("[", r"\[").replace("?", r"\?")
    ) as error:
        spec("a.py", **options)
    assert error.value.code == 64
    assert error.value.allowed or error.value.fix


WRONG_FILES = [
    ("host = 3", "algorun.toml: unknown key 'host'; allowed: .*; fix: did you mean 'hosts'?"),
    (
        "[task.a]\nrun = ['a.py']\nmax_runs = '1h'",
        "algorun.toml [task.a]: unknown key 'max_runs'; allowed: .*; fix: did you mean 'max_run'?",
    ),
    ("[task.a]\nregion = 'x'", "algorun.toml [task.a]: unknown key 'region'"),
    ("hosts = ", "algorun.toml: is not TOML: Invalid value .at end of document"),
    ("task = 3", "algorun.toml: task is not a table of tasks"),
    ("[task.a]\nrun = 'a.py'", "algorun.toml [task.a] run: 'a.py' is not a list of texts"),
    ("[task.a]\nrun = []", "algorun.toml [task.a] run: no program is named"),
    ("[task.a]\nrun = ['a.py']\nspot = 'yes'", "algorun.toml [task.a] spot: 'yes' is not a boolean"),
    ("[task.a]\nrun = ['a.py']\nhosts = true", "algorun.toml [task.a] hosts: True is not a whole number"),
    ("[task.a]\nrun = ['a.py']\nmax_run = 12", "algorun.toml [task.a] max_run: 12 is not a duration; .*; fix: 12s, if"),
    (
        "[task.a]\nrun = ['a.py']\nin.t = { form = 's3://bucket/a' }",
        "algorun.toml [task.a] in.t: unknown key 'form'; allowed: from, .*",
    ),
    (
        "[task.a]\nrun = ['a.py']\nin.t = { from = 's3://bucket/a', mode = 'pipe' }",
        "algorun.toml [task.a] in.t mode: 'pipe' is not a mode",
    ),
    ("[task.a]\nrun = ['a.py', \"\\u0000\"]", "algorun.toml [task.a] run: a text has a zero byte"),
    (
        "[task.a]\nrun = ['a.py']\nhyperparameters.since = 1979-05-27",
        "algorun.toml [task.a] hyperparameters.since: 1979-05-27 is a date or a time; .*; fix: write it in quotes",
    ),
    ("[task.a]\nrun = ['a.py']\nenv.AT = 07:32:00", "algorun.toml [task.a] env.AT: 07:32:00 is a date or a time"),
    (
        "[task.a]\nrun = ['a.py']\ntags.day = 1979-05-27T07:32:00Z",
        "tags.day: 1979-05-27 07:32:00.* is a date or a time",
    ),
    (
        "[task.a]\nrun = ['a.py']\nhyperparameters.a = [{ b = 1979-05-27 }]",
        "hyperparameters.a: .* holds a date or a time",
    ),
    ("[task.a]\nrun = ['a.py']\nhyperparameters.a = \"\\u0000\"", "hyperparameters.a: a value has a zero byte"),
    ("[task.a]\nrun = ['a.py']\nenv.A = \"a\\u0000\"", "env.A: a value has a zero byte, .*; fix: remove"),
    ("[task.a]\nrun = ['a.py']\nmetrics = 'x'", "algorun.toml [task.a] metrics: 'x' is not a table"),
    (
        "[task.a]\nrun = ['a.py']\n[task.b]\nrun = ['b.py']",
        "--task: several tasks are possible; allowed: a, b; fix: --task a",
    ),
    ("hosts = 2", "PROGRAM: no program is named"),
]


@pytest.mark.parametrize(("toml", "text"), WRONG_FILES)
def test_a_wrong_job_file_is_one_error(toml, text):
    with pytest.raises(UserError, match=text.replace("[", r"\[").replace("?", r"\?").replace("{", r"\{")) as error:
        spec(toml=toml)
    assert error.value.allowed or error.value.fix


def test_a_task_that_the_file_lacks():
    with pytest.raises(
        UserError,
        match="has no table .task.trian., and no PROGRAM is named; allowed: data, train; fix: did you mean 'train'",
    ):
        spec(toml=CLIENT_MD, task="trian")


def test_a_byte_order_mark_is_passed_over():
    """Editors of Windows write it."""
    from algorun_client.submit.read import job_file

    assert (
        job_file.parse(b'\xef\xbb\xbfproject = "p"\r\n', "algorun.toml", FOLDER).defaults.single["project"].raw == "p"
    )


def test_a_file_that_is_not_utf8():
    from algorun_client.submit.read import job_file

    with pytest.raises(UserError, match="is not UTF-8 .byte 0."):
        job_file.parse(b"\xff", "algorun.toml", FOLDER)


@given(st.binary(max_size=300))
@examples(300)
def test_any_bytes_are_a_job_file_or_one_error(content):
    from algorun_client.submit.read import job_file

    with contextlib.suppress(UserError):
        job_file.parse(content, "algorun.toml", FOLDER)


@given(st.lists(st.text(st.characters(blacklist_characters="\0")), max_size=8))
@examples(200)
def test_words_after_the_program_stay_as_they_are(words):
    assert spec("a.py", *words).program.args == tuple(words)


@given(
    st.one_of(
        st.text(),
        st.floats().map(repr),
        st.from_regex(r"-?[0-9]{1,4}[.e]?[0-9]{1,4}", fullmatch=True),
        st.booleans().map(json.dumps),
    )
)
@examples(200)
@example("1.10")  # a version
@example("12e4567")  # a commit: the program got inf
@example("null")  # the program got an empty word
def test_a_text_of_the_job_file_reaches_the_program_as_it_is(text):
    """As a text that the SDK sends, read by AWS's own reader. JSON's texts, lists and tables are decoded by intention."""
    mapping = pytest.importorskip("sagemaker_training.mapping")
    with contextlib.suppress(ValueError):
        assume(not isinstance(json.loads(text), str | list | dict))
    assume("\0" not in text and "\x7f" not in text)
    made = spec(
        toml=f"[task.a]\nrun = ['a.py']\nhyperparameters.value = {json.dumps(text, ensure_ascii=False)}"
    ).hyperparameters
    try:
        decoded = json.loads(made["value"])
    except ValueError:
        decoded = made["value"]
    assert mapping.to_cmd_args({"value": decoded}) == ["--value", text]


def test_numbers_of_the_job_file_and_of_flags_stay_numbers():
    toml = "[task.a]\nrun = ['a.py']\nhyperparameters = { lr = 1e-3, n = 1_000, amp = true, sagemaker_mpi_enabled = 'true', mp_parameters = '{}' }"
    assert spec(toml=toml).hyperparameters == {
        "lr": "0.001",
        "n": "1000",
        "amp": "true",
        "sagemaker_mpi_enabled": "true",
        "mp_parameters": "{}",
    }
    assert spec("a.py", hyperparameters=["lr=1e-3", 'version="1.10"']).hyperparameters == {
        "lr": "1e-3",
        "version": '"1.10"',
    }
