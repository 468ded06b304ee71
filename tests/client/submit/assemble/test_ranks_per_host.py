"""Who has to say how many ranks a host gets before GPUs are paid for: programs x instance types x ways of sending."""

from __future__ import annotations

import dataclasses

import pytest

from algorun.common.errors import UserError
from algorun_client.request.fingerprint import differences
from algorun_client.submit.assemble.ranks_per_host import Undecided
from algorun_client.submit.read import job_file, layers, make_spec
from tests.client.submit.specs import FACTS, FOLDER, request, spec
from tests.conftest import ROOT

FOUR = "ml.g5.12xlarge"  # GPUs
NAMES = ("train.py", "main.py", "run.sh", "package/__init__.py", "package/main.py")
OWN = {
    "a script": ("train.py", "--epochs", "10"),
    "a shell script": ("run.sh",),
    "a command of the image": ("torchrun", "--nproc-per-node", "4", "train.py"),
}
DISTRIBUTIONS = ("torch_distributed", "pytorch_ddp", "mpi", "distributed_dataparallel")


def sent(*words, names=NAMES, **options):
    return request(spec(*words, **{"instance": FOUR, **options}), names=names)


def undecided(*words, **options):
    with pytest.raises(Undecided) as error:
        sent(*words, **options)
    assert error.value.code == 64
    return str(error.value)


@pytest.mark.parametrize("program", OWN)
def test_a_program_of_the_user_s_on_several_gpus_has_to_be_decided(program):
    said = undecided(*OWN[program], hosts="3")
    assert said == (
        "--instance: ml.g5.12xlarge has 4 GPUs, and nothing says how many ranks a host gets; allowed: --per-gpu (12 ranks), or "
        "--per-host (3 ranks, for a program that itself uses all GPUs of its host); also --slots, -j, --engine; fix: say which, in "
        "the command or as `per_gpu = true` or `per_host = true` in the job file"
    )
    assert "--per-host (1 rank," in undecided(*OWN[program])


def test_a_module_and_a_shell_line_as_well():
    assert "12 ranks" in undecided(module="package.main", hosts="3")
    assert "12 ranks" in undecided(shell="python train.py", hosts="3")
    assert "12 ranks" in undecided("torchrun", "train.py", hosts="3", names=())


@pytest.mark.parametrize(
    ("options", "hyperparameters"),
    [
        ({"per_gpu": True}, {"algorun_per_gpu": "true"}),
        ({"per_host": True}, {"algorun_per_host": "true"}),
        ({"layout": "3x4"}, {"algorun_slots": "4"}),
        ({"slots": "1"}, {"algorun_slots": "1"}),
        ({"engine": "torchrun"}, {"algorun_engine": "torchrun"}),
        ({"engine": "ray"}, {"algorun_engine": "ray"}),
        ({"share_nothing": True}, {}),
        ({"env": ["ALGORUN_SLOTS=4"]}, {}),
        ({"env": ["ALGORUN_ENGINE=mpirun"]}, {}),
        ({"env": ["ALGORUN_SHARE_NOTHING=1"]}, {}),
        ({"env": ["ALGORUN_TF_CONFIG=1"]}, {}),  # TensorFlow's worker takes all GPUs of its host
        ({"hyperparameters": ["sagemaker_multi_worker_mirrored_strategy_enabled=true"]}, {}),
        *(({"hyperparameters": [f"sagemaker_{each}_enabled=true"]}, {}) for each in DISTRIBUTIONS),
    ],
)
def test_whoever_says_it_is_sent(options, hyperparameters):
    made = sent("train.py", **options)
    own = {name: value for name, value in made.create["HyperParameters"].items() if name.startswith("algorun_")}
    own.pop("algorun_args", None)
    assert own == hyperparameters
    assert made.create["Environment"]["ALGORUN_REQUEST_FORMAT"] == ("2" if "per_gpu" in options else "1")


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (("ddp", "--epochs", "1"), {"names": ()}),
        (("pipeline",), {"names": ()}),
        (("mpi-basics",), {"names": ()}),
        (("train.py",), {"instance": "ml.g5.xlarge"}),  # one GPU
        (("train.py",), {"instance": "ml.m5.xlarge"}),  # none
        (("train.py",), {"instance": "ml.trn1.32xlarge"}),
        (("train.py",), {"kind": "processing"}),
        (("train.py",), {"where": "local"}),
    ],
)
def test_where_no_gpu_would_idle_or_nothing_is_paid_nobody_is_asked(words, options):
    assert sent(*words, **options).create


def test_a_file_of_the_name_of_an_entrypoint_is_a_program_of_the_user_s():
    assert "4 ranks" in undecided("ddp", names=("ddp",))


def test_hosts_of_several_types_count_together():
    groups = ["gpu=ml.p4d.24xlargex2", "cpu=ml.m5.largex1"]
    with pytest.raises(
        Undecided, match=r"--instance-group: ml.p4d.24xlarge has 8 GPUs.*--per-gpu \(17 ranks\).*\(3 ranks"
    ):
        request(spec("train.py", instance_groups=groups), names=NAMES)
    assert request(spec("train.py", instance_groups=groups, per_gpu=True), names=NAMES).create
    assert request(spec("train.py", instance_groups=["a=ml.g5.xlargex2", "b=ml.m5.largex1"]), names=NAMES).create


def test_the_job_file_says_it_for_all_who_send_it():
    for key in ("per_gpu = true", "per_host = true", "slots = 4", 'engine = "torchrun"'):
        toml = f'instance = "{FOUR}"\n[task.train]\nrun = ["train.py"]\n{key}\n'
        assert request(spec(toml=toml, task="train"), names=NAMES).create
    file = ROOT / "examples" / "imagenet" / "algorun.toml"  # main.py starts a process for each GPU
    read = job_file.parse(file.read_bytes(), "algorun.toml", FOLDER)
    train = make_spec.make(
        read, layers.Layer({"task": layers.Given("--task", "train", FOLDER)}), (), folder=FOLDER, environ={}
    )
    train = dataclasses.replace(train, inputs=())
    assert train.resources.instance == FOUR
    assert request(train, names=NAMES).create["HyperParameters"]["algorun_per_host"] == "true"
    silent = dataclasses.replace(train, launch=dataclasses.replace(train.launch, per_host=False))
    with pytest.raises(Undecided):
        request(silent, names=NAMES)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"per_host": True}, "--per-gpu: contradicts --per-host; fix: drop one of the two, or --no-per-host"),
        (
            {"share_nothing": True},
            "--per-gpu: contradicts --share-nothing; fix: drop one of the two, or --no-share-nothing",
        ),
        ({"slots": "4"}, "--per-gpu: contradicts 4 slots; fix: drop one of the two, or --no-per-gpu"),
        ({"layout": "2x4"}, "--per-gpu: contradicts 4 slots"),
        ({"engine": "ray"}, "hyperparameter algorun_per_gpu: contradicts engine ray: its driver runs once"),
    ],
)
def test_contradictions_are_named_before_anything_is_sent(options, text):
    with pytest.raises(UserError) as error:
        sent("train.py", per_gpu=True, **options)
    assert str(error.value).startswith(text)


def test_an_image_that_would_pass_over_the_option_is_refused():
    old = dataclasses.replace(FACTS, image_format=1)
    with pytest.raises(UserError, match="is too old for --per-gpu"):
        request(spec("train.py", instance=FOUR, per_gpu=True), old, names=NAMES)
    assert request(spec("train.py", instance=FOUR, per_host=True), old, names=NAMES).create


@pytest.mark.parametrize("said", [{"per_host": True}, {"slots": "1"}, {"layout": "1x1"}])
def test_saying_what_the_launcher_did_anyway_leaves_a_task_done(said):
    before = sent("train.py", instance="ml.g5.xlarge").fingerprint  # nobody had to say anything
    now = sent("train.py", instance="ml.g5.xlarge", **said).fingerprint
    assert differences(before, now) == differences(now, before) == ()
    assert differences(before, sent("train.py", instance="ml.g5.xlarge", per_gpu=True).fingerprint) == (
        "per_gpu: was absent, is true",
    )


@pytest.mark.parametrize(
    "engine",
    [{"engine": "torchrun"}, {"env": ["ALGORUN_ENGINE=mpirun"]}, {"hyperparameters": ["sagemaker_mpi_enabled=true"]}],
    ids=str,
)
def test_where_it_changes_the_ranks_it_changes_the_task(engine):
    def of(**options):
        return sent("train.py", **engine, **options).fingerprint

    assert differences(of(), of(per_host=True)) == ("per_host: was absent, is true",)
    bundled = [sent("ddp", names=(), **options).fingerprint for options in ({}, {"per_host": True})]
    assert differences(*bundled) == ("per_host: was absent, is true",)
