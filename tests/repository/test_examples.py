"""The request of examples/create_training_job.py is one that AWS's own service model takes."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile

import pytest

from tests.conftest import ROOT

botocore = pytest.importorskip("botocore", reason="boto3 is not installed")


def test_the_raw_request_is_valid_and_says_what_the_launcher_reads(tmp_path):
    from botocore.session import get_session
    from botocore.validate import ParamValidator

    argv = ["--image-uri", "1.dkr.ecr.eu-west-1.amazonaws.com/algorun:1", "--role", "arn:aws:iam::123456789012:role/x"]
    argv += ["--code", "s3://bucket/sourcedir.tar.gz", "--output", "s3://bucket/out", "--dry-run"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "create_training_job.py"), *argv],
        capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path,
    )  # fmt: skip
    request = json.loads(done.stdout)
    model = get_session().get_service_model("sagemaker").operation_model("CreateTrainingJob")
    assert not ParamValidator().validate(request, model.input_shape).generate_report()
    (tmp_path / "input" / "config").mkdir(parents=True)
    (tmp_path / "input" / "config" / "resourceconfig.json").write_text('{"hosts": ["a", "b"], "current_host": "a"}')
    (tmp_path / "input" / "config" / "hyperparameters.json").write_text(json.dumps(request["HyperParameters"]))
    from algorun.job.config import LaunchRequest, read_config

    job = read_config(LaunchRequest(from_job=True), {"SAGEMAKER_BASE_DIR": str(tmp_path)})
    assert (job.launch.engine.value, job.setup.uri) == ("torchrun", "s3://bucket/sourcedir.tar.gz")
    assert job.entry.args == ("--epochs", "3", "--lr", "0.1")


def sdk(major: int) -> str:
    """The version of the SageMaker SDK that `make test-all PART=sdk` runs."""
    pinned = (ROOT / "tests" / "sdk" / f"requirements-v{major}.txt").read_text()
    return re.search(rf"^sagemaker==({major}\.\S+)$", pinned, flags=re.MULTILINE)[1]


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_for_an_sdk_names_the_version_that_the_tests_run(example):
    text = example.read_text()
    if not re.search(r"^(from|import) sagemaker\b", text, flags=re.MULTILINE):
        return
    major = 3 if "sagemaker.train" in text else 2
    assert f"pip install sagemaker=={sdk(major)} " in text


@pytest.mark.parametrize(
    ("page", "majors"), [("README.md", (2, 3)), ("docs/sagemaker.md", (2, 3)), ("docs/models.md", (2,)), ("docs/frameworks.md", (2,))]
)  # fmt: skip
def test_pages_with_calls_of_the_sdks_name_the_versions_that_the_tests_run(page, majors):
    text = (ROOT / page).read_text()
    assert [sdk(major) for major in majors if sdk(major) not in text] == []


IMAGENET = ROOT / "examples" / "imagenet"
# Lines as main.py prints them.
LINES = {
    "train:loss": (
        "Epoch: [3][ 10/118]\tTime  0.271 ( 0.502)\tData  0.000 ( 0.1)\tLoss 2.1534e+00 (2.2e+00)",
        "2.1534e+00",
    ),
    "train:accuracy": ("Epoch: [3][ 10/118]\tLoss 2.1e+00 (2.2e+00)\tAcc@1  21.88 ( 18.40)\tAcc@5  68 ( 66)", "21.88"),
    "val:accuracy": (" *   Acc@1 31.416 Acc@5 80.127", "31.416"),
}


@pytest.mark.parametrize("task", ["data", "train"])
def test_the_tasks_of_imagenet_are_requests_that_sagemaker_takes(task):
    from algorun_client.aws.service_model import input_shape
    from algorun_client.request import limits
    from algorun_client.request.model import Kind
    from algorun_client.submit.assemble.assemble import assemble
    from algorun_client.submit.look_up.facts import Facts, Upstream
    from algorun_client.submit.read import job_file, make_spec
    from algorun_client.submit.read.layers import Given, Layer
    from algorun_client.submit.read.material import Material
    from algorun_client.submit.read.program import started

    text = (
        (IMAGENET / "algorun.toml").read_bytes().replace(b"ACCOUNT", b"123456789012").replace(b"REGION", b"eu-west-1")
    )
    file = job_file.parse(text, "algorun.toml", str(IMAGENET))
    flags = Layer({"task": Given("--task", task, str(IMAGENET))})
    spec = make_spec.make(file, flags, [], folder=str(IMAGENET), environ={})
    facts = Facts(upstreams={"data": Upstream(kind=Kind.PROCESSING, number=1, job="imagenet-data-0001-abcdef")})
    request = assemble(spec, facts, Material(started=started(spec.program, {"main.py", "download.py"})), 1)
    limits.check(input_shape(request.kind), request.create, request.unknown)
    for name, regex in spec.metrics.items():
        line, value = LINES[name]
        assert re.search(regex, line)[1] == value
        assert [other for other, (each, _) in LINES.items() if other[0] != name[0] and re.search(regex, each)] == []


def test_the_download_of_imagenet_repacks_images_for_the_hosts(tmp_path):
    given = tmp_path / "images.tgz"
    with tarfile.open(given, "w:gz") as tar:
        for name in (
            "top/train/cat/1.JPEG",
            "top/train/dog/2.JPEG",
            "top/val/cat/3.JPEG",
            "top/README",
            "top/../val/x/y",
        ):
            info = tarfile.TarInfo(name)
            info.size = len(name)
            tar.addfile(info, io.BytesIO(name.encode()))
    argv = [sys.executable, str(IMAGENET / "download.py"), "--parts", "2", "--url", given.as_uri()]
    environ = {**os.environ, "SSM_OUTPUT": str(tmp_path / "out")}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "3 images in 2 files\n"), done.stderr
    found = {}
    for path in sorted((tmp_path / "out" / "images").iterdir()):
        with tarfile.open(path) as tar:
            found[path.name] = {each.name: tar.extractfile(each).read().decode() for each in tar}
    assert found == {
        "part-00.tar": {"train/cat/1.JPEG": "top/train/cat/1.JPEG", "val/cat/3.JPEG": "top/val/cat/3.JPEG"},
        "part-01.tar": {"train/dog/2.JPEG": "top/train/dog/2.JPEG"},
    }
    done = subprocess.run([*argv, "--every", "2"], env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "2 images in 2 files\n"), done.stderr
    with tarfile.open(given, "w"):
        pass
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("holds no images in train/CLASS/ or val/CLASS/")) == (1, 1)
