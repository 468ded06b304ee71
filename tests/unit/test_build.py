"""build.sh and the files it uses, with docker clients that only write down how they were called."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from launcher import probe

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build.sh"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docker" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


host_settings, hosts = load("host_settings"), load("hosts")


def client(folder: Path, version: str, *, buildx: bool, images: tuple[str, ...] = ()) -> Path:
    """A docker client that writes its arguments, one JSON list a line, to `calls` beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "docker"
    path.write_text(
        f"""#!{shutil.which("python3")}
import json, os, sys
words = sys.argv[1:]
if words == ["--version"]:
    print("Docker version {version}, build 0")
elif words[:1] == ["buildx"]:
    sys.exit({0 if buildx else 1})
elif words[:2] == ["image", "inspect"] and "--format" not in words:
    sys.exit(0 if words[2] in {images!r} else 1)
else:
    with open({str(folder / "calls")!r}, "a") as out:
        out.write(json.dumps([os.environ.get("DOCKER_BUILDKIT", ""), *words]) + "\\n")
"""
    )
    path.chmod(0o755)
    return path


def calls(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


def build(*argv: str, docker: Path | None = None, path: str = "") -> subprocess.CompletedProcess[str]:
    environ = dict(os.environ, PATH=f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"])
    environ.pop("DOCKER", None)
    if docker:
        environ["DOCKER"] = str(docker)
    return subprocess.run([BUILD, *argv], env=environ, capture_output=True, text=True, timeout=60, check=False, cwd="/")


# ---- what is run ----------------------------------------------------------------------------------------------------


def test_a_plain_docker_gets_a_plain_build(tmp_path: Path) -> None:
    docker = client(tmp_path, "28.0.0", buildx=True)
    done = build("build", "--no-host-settings", docker=docker)
    assert done.returncode == 0, done.stderr
    words = calls(tmp_path)[0]
    assert words[:4] == ["1", "build", "--build-arg", "VARIANT=cuda"]
    assert words[-3:] == ["--tag", "algorun:cuda", str(ROOT)]
    assert not {"--secret", "--network"} & set(words)
    assert not any(word.startswith("BASE_IMAGE") for word in words), "the Dockerfile's own default"


def test_cpu_builds_on_plain_ubuntu_or_on_the_local_base(tmp_path: Path) -> None:
    for images, base in (((), "ubuntu:24.04"), (("algorun-base:bookworm",), "algorun-base:bookworm")):
        docker = client(tmp_path / base, "28.0.0", buildx=True, images=images)
        assert build("build", "--variant", "cpu", "--no-host-settings", docker=docker).returncode == 0
        assert f"BASE_IMAGE={base}" in calls(tmp_path / base)[0]


def test_settings_travel_as_secrets_and_as_an_image(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    (folder / "ca.pem").write_text("certificate")
    (folder / "pip.conf").write_text("[global]\nindex-url = https://user:secret@mirror.example/simple\n")
    docker = client(folder, "20.10.24+dfsg1", buildx=False)
    options = ("--ca", f"{folder}/ca.pem", "--pip-conf", f"{folder}/pip.conf", "--wheelhouse", str(wheels))
    done = build("build", "--variant", "cpu", "--no-host-settings", "--network", "host", *options, docker=docker)
    assert done.returncode == 0, done.stderr
    imported, words = calls(folder)[:2]
    assert imported[1:3] == ["import", "-"]
    assert re.fullmatch(r"algorun-wheelhouse:build-\d+", imported[3])  # two builds at once don't share it
    assert f"id=ca,src={folder}/ca.pem" in words
    assert f"id=pip_conf,src={folder}/pip.conf" in words
    assert f"WHEELHOUSE_IMAGE={imported[3]}" in words
    assert words[words.index("--network") + 1] == "host"
    assert "secret@mirror" not in done.stdout + done.stderr + json.dumps(words)


@pytest.mark.parametrize("command", ["build", "run", "test"])
def test_what_is_printed_is_what_runs(tmp_path: Path, command: str) -> None:
    options = [command, "--no-host-settings", "--tag", "a$(touch x)'b:c d"]
    options += ["--opt-ml", str(tmp_path)] if command == "run" else []
    options += ["--build-arg", "EXTRA_PACKAGES=git make"] if command == "build" else []
    docker = client(tmp_path, "28.0.0", buildx=True, images=("a$(touch x)'b:c d",))
    printed = build(*options, "--dry-run", docker=docker)
    assert printed.returncode == 0, printed.stderr
    assert not (tmp_path / "calls").exists()
    ran = build(*options, docker=docker)
    assert ran.stdout == printed.stdout
    pasted = [shlex.split(line.removeprefix("+ ")) for line in printed.stdout.splitlines()]
    executed = [["env", "DOCKER_BUILDKIT=1", "BUILDX_NO_DEFAULT_ATTESTATIONS=1", str(docker), *words] if flag else [str(docker), *words]
                for flag, *words in calls(tmp_path)]  # fmt: skip
    assert [words for words in pasted if str(docker) in words] == executed


def test_words_behind_two_dashes_replace_train(tmp_path: Path) -> None:
    docker = client(tmp_path, "28.0.0", buildx=True)
    done = build("run", "--dry-run", "--opt-ml", str(tmp_path), "--", "plan", "--json", docker=docker)
    assert done.stdout.splitlines()[-1].endswith("algorun:cuda plan --json")
    assert build("run", "--dry-run", "--opt-ml", str(tmp_path), docker=docker).stdout.endswith("algorun:cuda train\n")


def test_a_client_that_cannot_use_buildkit_is_passed_over(tmp_path: Path) -> None:
    first = client(tmp_path / "new", "28.2.2", buildx=False)
    second = client(tmp_path / "old", "20.10.24+dfsg1", buildx=False)
    done = build("test", "--dry-run", path=f"{first.parent}:{second.parent}")
    assert f"+ {second} run" in done.stdout
    alone = build("test", docker=first)
    assert alone.returncode == 64
    assert "buildx" in alone.stderr


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["bulid"], ["'bulid'", "build, run, test, push, base"]),
        (["build", "--variant", "rocm"], ["--variant 'rocm'", "cuda, cpu"]),
        (["build", "--variant"], ["--variant", "takes a value"]),
        (["build", "--ca", "/no/such"], ["--ca '/no/such'", "no such file"]),
        (["build", "--wheelhouse", "/no/such"], ["--wheelhouse '/no/such'", "no such folder"]),
        (["build", "--build-arg", "X"], ["--build-arg 'X'", "NAME=VALUE"]),
        (["build", "--push"], ["'--push'", "-h"]),
        (["build", "--create"], ["'--create'", "not an option of 'build'", "push"]),
        (["push", "--opt-out"], ["'--opt-out'", "not an option of 'push'", "-h"]),
        (["push", "--repository"], ["--repository", "takes a value"]),
        (["push", "--repository", "Upper"], ["--repository 'Upper'", "a-z 0-9"]),
        (
            ["push", "--repository", "1.dkr.ecr.eu-west-1.amazonaws.com/x"],
            ["--repository '1.dkr", "Leave the host out"],
        ),
        (["push", "--repository", "host.example:5000/x"], ["tag '5000/x'", "--repository NAME:TAG"]),
        (["push", "--repository", "x/y:z/"], ["tag 'z/'", "--repository NAME:TAG"]),
        (["push", "--tag", "x@sha256:0"], ["image 'x@sha256:0'", "not on this machine"]),
        (["push", "--scan-on-push", "--immutable-tags"], ["--scan-on-push --immutable-tags", "only with --create"]),
        (["push", "--account", "1234"], ["--account '1234'", "12 digits"]),
        (["push", "--region", "eu west"], ["--region 'eu west'", "eu-west-1"]),
        (["push", "--registry", "https://a.example"], ["--registry 'https://a.example'", "HOST:PORT", "https://"]),
        (["push", "--endpoint-url", "a.example"], ["--endpoint-url 'a.example'", "https://"]),
        (["push", "--platform", "arm64"], ["--platform 'arm64'", "OS/ARCH", "linux/arm64"]),
        (["push", "--limit", "2h"], ["--limit '2h'", "seconds"]),
        (["push", "--tag", "none:none"], ["image 'none:none'", "build --variant cuda"]),
        (["test", "--tag", "none:none"], ["image 'none:none'", "build --variant cuda"]),
    ],
)
def test_errors_name_option_value_and_fix(tmp_path: Path, argv: list[str], parts: list[str]) -> None:
    done = build(*argv, docker=client(tmp_path, "28.0.0", buildx=True))
    assert done.returncode == 64
    assert done.stdout == ""
    for part in parts:
        assert part in done.stderr


def test_help() -> None:
    assert "usage: ./build.sh" in build("-h").stdout
    assert build().returncode == 64


# ---- push -----------------------------------------------------------------------------------------------------------

HOST = "123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn"
DIGEST = f"sha256:{'0123456789abcdef' * 4}"
PASSWORD = "s3cret-of-ecr"
ANSWERS = {
    "aws describe-repositories": (0, f"{HOST}/algorun\tMUTABLE\tFalse\n", ""),
    "aws create-repository": (0, f"{HOST}/algorun\tIMMUTABLE\tTrue\n", ""),
    "aws describe-images": (0, f"{DIGEST}\n", ""),
    "aws get-login-password": (0, f"{PASSWORD}\n", ""),
    "docker info": (0, "", ""),
    "docker version": (0, "", ""),
    "docker image inspect": (0, "", ""),
    "docker image inspect {{.Os}}": (0, "linux/amd64\n", ""),
    "docker image inspect {{range": (0, f"other.example/algorun@{DIGEST}\n{HOST}/algorun@{DIGEST}\n", ""),
    "docker context inspect": (0, "default\n", ""),
    "docker login": (0, "Login Succeeded\n", "WARNING! Your password will be stored unencrypted\n"),
    "docker tag": (0, "", ""),
    "docker push": (0, "", ""),
}
Answer = tuple[int, str, str]


def aws_error(code: str, words: str) -> Answer:
    return (254, "", f"\nAn error occurred ({code}) when calling the X operation: {words}\n")


ABSENT = aws_error("RepositoryNotFoundException", "The repository with name 'algorun' does not exist")
FREE = aws_error("ImageNotFoundException", "The image with imageId {..} does not exist")


class Programs:
    """An `aws` and a `docker` that give these answers and write down their words, what they read and their settings."""

    def __init__(self, folder: Path, **answers: Answer) -> None:
        self.folder = folder
        known = ANSWERS | {name.replace("__", " ").replace("_", "-"): answer for name, answer in answers.items()}
        for name in ("aws", "docker"):
            path = folder / "bin" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                f"""#!{sys.executable} -IS
import json, os, sys
answers, words = {known!r}, sys.argv[1:]
called = " ".join([{name!r}, *(words[words.index("ecr") + 1:] if {name!r} == "aws" else words)])
if "--format" in words:
    called = called.replace("--format ", "")
key = max((key for key in answers if called.startswith(key)), key=len)
read = sys.stdin.read() if "--password-stdin" in words else ""
config = os.environ.get("DOCKER_CONFIG", "")
files = {{name: os.path.realpath(os.path.join(config, name)) for name in os.listdir(config)}} if config else {{}}
text = open(files["config.json"]).read() if "config.json" in files else ""
mode = oct(os.stat(config).st_mode & 0o777) if config else ""
with open({str(folder / "calls")!r}, "a") as out:
    out.write(json.dumps([{name!r}, words, read, text, files, mode, os.environ.get("DOCKER_CONTEXT", "")]) + "\\n")
code, said, error = answers[key]
sys.stdout.write(said)
sys.stderr.write(error)
sys.exit(code)
"""
            )
            path.chmod(0o755)

    def push(self, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
        removed = ("AWS_REGION", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER")
        kept = {key: value for key, value in os.environ.items() if key not in removed}
        kept |= {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "HOME": str(self.folder)} | environ
        command = [BUILD, "push", *argv]
        return subprocess.run(command, env=kept, capture_output=True, text=True, timeout=60, check=False, cwd="/")

    def calls(self) -> list[list]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]

    def words(self) -> list[list[str]]:
        return [
            [str(self.folder / "bin" / name) if name == "docker" else name, *words] for name, words, *_ in self.calls()
        ]


def commands(printed: str) -> list[list[str]]:
    """The printed command lines without what only surrounds them; a pipe is two."""
    found = []
    for line in printed.splitlines():
        if line.startswith("+ "):
            for part in line.removeprefix("+ ").split(" | "):
                words = shlex.split(part)
                start = next((i for i, word in enumerate(words) if word == "aws" or word.endswith("/docker")), None)
                found += [words[start:]] if start is not None else []
    return found


def test_push_prints_what_it_runs_and_hides_the_password(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    done = programs.push("--repository", "algorun:1.0", "--region", "cn-north-1", "--account", "123456789012")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    uri, by_digest = done.stdout.splitlines()[-2:]
    assert (uri, by_digest) == (f"image_uri: {HOST}/algorun:1.0", f"by digest: {HOST}/algorun@{DIGEST}")
    looks = {"image", "context"}  # they change nothing, and are not printed
    assert commands(done.stdout) == [words for words in programs.words() if words[1] not in looks]
    assert PASSWORD not in done.stdout + json.dumps(programs.words())
    login, push = (next(call for call in programs.calls() if call[1][0] == name) for name in ("login", "push"))
    assert login[1] == ["login", "--username", "AWS", "--password-stdin", HOST]
    assert login[2].strip() == PASSWORD
    assert push[1] == ["push", f"{HOST}/algorun:1.0"]
    for _, _, _, config, files, mode, context in (login, push):
        assert json.loads(config) == {"auths": {HOST: {}}}
        assert mode == "0o700"
        assert context == ""
        assert not any(Path(path).exists() for path in files.values())
    assert list(tmp_path.glob(".docker")) == []


def test_push_dry_run_asks_nobody_and_prints_everything(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    options = ["--create", "--scan-on-push", "--immutable-tags", "--repository", "team/algorun", "--variant", "cpu"]
    done = programs.push(*options, "--limit", "60", "--endpoint-url", "https://vpce.example", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert [words for name, words, *_ in programs.calls()] == [["context", "inspect", "--format", "{{.Name}}"]]
    assert not list((ROOT / ".build").glob("push.*"))
    run = commands(done.stdout)
    assert [words[words.index("ecr") + 1] if words[0] == "aws" else words[1] for words in run] == [
        "describe-repositories", "create-repository", "describe-images", "get-login-password", "login", "tag", "push",
    ]  # fmt: skip
    assert all("--endpoint-url https://vpce.example ecr" in " ".join(words) for words in run[:4])
    assert "--image-scanning-configuration scanOnPush=true --image-tag-mutability IMMUTABLE" in " ".join(run[1])
    assert run[-1][1:] == ["push", "REGISTRY/team/algorun:cpu"]
    assert " timeout --foreground --kill-after 5 60 " in done.stdout.splitlines()[-1]
    named = programs.push("--dry-run", "--registry", "a.example:8443", "--tag", "mine@sha256:1")
    assert commands(named.stdout)[-1][1:] == ["push", "a.example:8443/algorun:latest"]
    assert "create-repository" not in named.stdout


def test_push_asks_the_engine_that_the_user_chose(tmp_path: Path) -> None:
    programs = Programs(tmp_path, docker__context__inspect=(0, "desktop-linux\n", ""))
    contexts = tmp_path / ".docker" / "contexts"
    contexts.mkdir(parents=True)
    assert programs.push().returncode == 0
    *_, files, _, context = next(call for call in programs.calls() if call[1][0] == "push")
    assert context == "desktop-linux"
    assert files["contexts"] == str(contexts)
    assert contexts.is_dir(), "the link went, not what it names"


def test_push_makes_the_repository_once(tmp_path: Path) -> None:
    programs = Programs(tmp_path / "new", aws__describe_repositories=ABSENT, aws__describe_images=FREE)
    done = programs.push("--create", "--immutable-tags", "--scan-on-push")
    assert done.returncode == 0, done.stderr
    assert [words for words in programs.words() if "create-repository" in words]
    programs = Programs(tmp_path / "old")
    assert programs.push("--create").returncode == 0
    assert not [words for words in programs.words() if "create-repository" in words]


def test_push_asks_ecr_where_docker_knows_two_digests(tmp_path: Path) -> None:
    two = f"{HOST}/algorun@sha256:{'0' * 64}\n{HOST}/algorun@sha256:{'1' * 64}\n"
    programs = Programs(tmp_path, **{"docker__image__inspect__{{range": (0, two, "")})
    assert programs.push().stdout.endswith(f"by digest: {HOST}/algorun@{DIGEST}\n")


@pytest.mark.parametrize(
    ("answers", "parts"),
    [
        ({"aws__describe_repositories": ABSENT}, ["--repository 'algorun'", "no such repository", "--create"]),
        ({"aws__describe_repositories": aws_error("ExpiredTokenException", "The security token included in the request is expired")},
         ["AWS credentials: expired", "security token", "sso login"]),
        ({"aws__describe_repositories": (255, "", "Error loading SSO Token: Token for x does not exist\n")}, ["expired", "sso login"]),
        ({"aws__describe_repositories": aws_error("UnrecognizedClientException", "The security token included in the request is invalid.")},
         ["AWS credentials: not valid", "Correct"]),
        ({"aws__describe_repositories": (253, "", "Unable to locate credentials. You can configure ..\n")}, ["none found", "AWS_PROFILE"]),
        ({"aws__describe_repositories": ABSENT, "aws__create_repository": aws_error("AccessDeniedException", "User: u is not authorized to perform: ecr:CreateRepository")},
         ["ECR: access denied", "ecr:CreateRepository", "Ask for this right"]),
        ({"aws__describe_repositories": (255, "", 'Connect timeout on endpoint URL: "https://api.ecr.x/"\n')}, ["no answer (Connect timeout"]),
        ({"aws__describe_repositories": (124, "", "")}, ["ECR: no answer (after 60 s)", "HTTPS_PROXY"]),
        ({"aws__describe_repositories": aws_error("ServerException", "boom")}, ["ECR: An error occurred (ServerException)", "boom"]),
        ({"aws__get_login_password": aws_error("AccessDeniedException", "not authorized to perform: ecr:GetAuthorizationToken")},
         ["access denied", "ecr:GetAuthorizationToken"]),
        ({"aws__describe_repositories": (0, f"{HOST}/algorun\tIMMUTABLE\tTrue\n", "")}, ["tag 'cuda'", "has it already", "algorun:NEW-TAG"]),
        ({"docker__login": (1, "", "Error response from daemon: login attempt to https://h/v2/ failed with status: 401 Unauthorized\n")},
         [f"registry '{HOST}'", "does not take ECR's password", "401"]),
        ({"docker__push": (1, "", "tag invalid: The image tag 'cuda' already exists in the 'algorun' repository and cannot be overwritten because the repository is immutable.\n")},
         ["tag 'cuda'", "immutable", "algorun:NEW-TAG"]),
        ({"docker__push": (1, "", "denied: User: u is not authorized to perform: ecr:InitiateLayerUpload on resource: r\n")},
         [f"registry '{HOST}': access denied", "ecr:InitiateLayerUpload"]),
        ({"docker__push": (1, "", 'Get "https://h/v2/": dial tcp: lookup h: no such host\n')}, ["not reachable", "no such host", "proxy"]),
        ({"docker__push": (124, "", "")}, ["not done after 7200 s", "--limit"]),
        ({"docker__push": (1, "", "unexpected status: 500\n")}, [f"registry '{HOST}': unexpected status: 500"]),
        ({"docker__image__inspect": (1, "", ""), "docker__info": (1, "", "")}, ["no Docker engine answers"]),
    ],
)  # fmt: skip
def test_push_says_in_one_line_what_is_wrong(tmp_path: Path, answers: dict[str, Answer], parts: list[str]) -> None:
    programs = Programs(tmp_path, **answers)
    done = programs.push("--create") if "aws__create_repository" in answers else programs.push()
    assert done.returncode == 1, done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("build.sh: ")
    for part in parts:
        assert part in done.stderr
    assert "image_uri" not in done.stdout
    assert not list((ROOT / ".build").glob("push.*"))


def test_push_needs_a_region_and_the_right_machine(tmp_path: Path) -> None:
    no_region = (
        253,
        "",
        '\nYou must specify a region. You can also configure your region by running "aws configure".\n',
    )
    done = Programs(tmp_path / "region", aws__describe_repositories=no_region).push()
    assert done.returncode == 64
    assert "--region: no region is set. Write --region NAME" in done.stderr
    programs = Programs(tmp_path / "arm", **{"docker__image__inspect__{{.Os}}": (0, "linux/arm64\n", "")})
    done = programs.push()
    assert done.returncode == 64
    assert "made for linux/arm64, --platform is linux/amd64" in done.stderr
    assert programs.push("--platform", "linux/arm64").returncode == 0


def test_push_without_the_aws_cli(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    (tmp_path / "bin" / "aws").unlink()
    for name in ("bash", "dirname", "cat"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    done = programs.push(PATH=f"{tmp_path}/bin")
    assert done.returncode == 1
    assert done.stderr == "build.sh: aws: not installed. Install the AWS CLI, version 2 or 1.17.10 and later\n"


# ---- what this machine's settings become ------------------------------------------------------------------------------


def test_pip_settings_that_mean_something_inside_a_build() -> None:
    listing = "\n".join(
        [
            ":env:.index-url='https://mirror.example/simple'",
            "global.index-url='https://older.example/simple'",
            "global.extra-index-url='file:///srv/index\\nhttps://more.example/simple'",
            "global.cert='/etc/company.pem'",
            "global.find-links='/srv/wheels'",
            "list.format='columns'",
        ]
    )
    values = host_settings.pip_values(listing)
    text = host_settings.pip_conf(values)
    assert "index-url = https://mirror.example/simple" in text
    assert "https://more.example/simple" in text
    assert "/srv" not in text
    assert "/etc" not in text
    assert host_settings.pip_conf({"find-links": "/srv/wheels"}) == ""


def test_apt_settings_that_mean_something_inside_a_build() -> None:
    dump = "\n".join(
        [
            'APT::Sandbox::User "_apt";',
            'Acquire::http "";',
            'Acquire::http::Proxy "http://proxy.example:3128";',
            'Acquire::https::CaInfo "/etc/company.pem";',
            'Acquire::Check-Valid-Until "false";',
            'DPkg::Post-Invoke:: "/usr/bin/something";',
        ]
    )
    kept = ['Acquire::http::Proxy "http://proxy.example:3128";', 'Acquire::Check-Valid-Until "false";']
    assert host_settings.apt_conf(dump).splitlines() == kept


def test_certificates_and_wheels_only_where_they_exist(tmp_path: Path) -> None:
    pem = tmp_path / "ca.pem"
    pem.write_text("x")
    assert host_settings.ca_file({"PIP_CERT": "/no/such", "SSL_CERT_FILE": str(pem)}, {}) == pem
    assert host_settings.ca_file({}, {"cert": str(pem)}) == pem
    assert host_settings.ca_file({}, {}) is None
    assert host_settings.wheelhouse({"find-links": str(tmp_path)}) is None
    (tmp_path / "a-1-py3-none-any.whl").touch()
    assert host_settings.wheelhouse({"find-links": f"/no/such {tmp_path}"}) == tmp_path


# ---- /opt/ml of the compose hosts -------------------------------------------------------------------------------------


def test_hosts_get_their_own_trees_and_keep_what_sagemaker_keeps(tmp_path: Path) -> None:
    argv = ["python3", "-I", str(ROOT / "docker/hosts.py"), str(tmp_path), "--hosts", "algo-2,algo-10"]
    argv += ["--hyperparameters", "epochs=3 'name=a b'", "--channel", "train"]
    for _ in range(2):
        subprocess.run(argv, check=True, capture_output=True, timeout=60)
        (tmp_path / "algo-10/model/old.pt").touch()
        (tmp_path / "algo-10/checkpoints/kept").touch()
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    config = tmp_path / "algo-10/input/config"
    assert json.loads((config / "resourceconfig.json").read_text()) == {
        "current_host": "algo-10",
        "hosts": ["algo-2", "algo-10"],
        "network_interface_name": "eth0",
    }
    assert json.loads((config / "hyperparameters.json").read_text()) == {"epochs": "3", "name": "a b"}
    assert list(json.loads((config / "inputdataconfig.json").read_text())) == ["train"]
    assert not (tmp_path / "algo-10/model/old.pt").exists()
    assert (tmp_path / "algo-10/checkpoints/kept").exists()


@pytest.mark.parametrize("argv", [["--hosts", ""], ["--hosts", "a,a"], ["--hosts", "a", "--hyperparameters", "x"]])
def test_hosts_refuses_what_cannot_be_meant(tmp_path: Path, argv: list[str]) -> None:
    command = ["python3", "-I", str(ROOT / "docker/hosts.py"), str(tmp_path / "out"), *argv]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 2
    assert not (tmp_path / "out").exists()


# ---- the files themselves -------------------------------------------------------------------------------------------


def test_the_dockerfile_needs_no_more_than_an_old_buildkit() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert not re.search(r"(?i)^#\s*syntax\s*=", text, re.MULTILINE)
    assert "<<" not in text
    assert "--link" not in text
    assert not re.search(r"PYTHON(SAFE)?PATH=", text)


def test_the_last_layer_writes_the_id_that_hosts_compare(tmp_path: Path) -> None:
    last = (ROOT / "Dockerfile").read_text().rpartition("\nRUN ")[2]
    command = re.search(r"(cat \S+) > (/etc/\S+)", last)
    assert command is not None
    assert command[2] == probe.IMAGE
    assert f" {probe.IMAGE}\n" in (ROOT / "docker/check-image.sh").read_text()
    ids = []
    for number in ("1", "2"):
        (tmp_path / number / "etc").mkdir(parents=True)
        written = f"{tmp_path}/{number}{probe.IMAGE}"
        subprocess.run(["bash", "-c", f"{command[1]} > {written}"], timeout=60, check=True)
        ids.append(probe.look({}, str(tmp_path / number)).image)
    assert len(set(ids)) == 2
    assert all(re.fullmatch(r"[0-9a-f-]{36}", each) for each in ids)


def test_locks_have_hashes_and_name_no_index() -> None:
    locks = sorted((ROOT / "docker").glob("requirements-*.lock"))
    assert len(locks) == 5
    for lock in locks:
        text = lock.read_text()
        assert "://" not in text
        assert "--index" not in text
        pins = re.findall(r"^[a-z0-9-]+==", text, re.MULTILINE)
        hashed = re.findall(r"^[a-z0-9-]+==[^\n]*\\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
        assert len(hashed) == len(pins) > 0, lock.name
        assert f"docker/{lock.name}" in (ROOT / "Dockerfile").read_text()


def test_torch_keeps_its_own_nccl_and_its_torchvision() -> None:
    pins = "\n".join(lock.read_text() for lock in (ROOT / "docker").glob("requirements-*.lock"))
    for pin in ("torch==2.10.0 ", "torchvision==0.25.0 ", "nvidia-nccl-cu12==2.27.5 "):
        assert pin in pins


def test_compose_needs_no_version_and_no_rights() -> None:
    text = (ROOT / "docker/compose.yaml").read_text()
    for word in ("version:", "ulimits:", "privileged:", "build:"):
        assert word not in text


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shell_scripts_are_clean() -> None:
    scripts = [str(BUILD), str(ROOT / "docker/train"), *map(str, (ROOT / "docker").glob("*.sh"))]
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
