"""The user's code from where the SDKs put it, to a job on real hosts: fetched, unpacked, installed, run."""

from __future__ import annotations

import pytest

from tests.conftest import algorun

from .code_folders import HOSTS, PRINTS, Cluster, both, tarball, tree


@pytest.mark.parametrize("form", ["tar", "file-uri", "folder", "network isolation"])
def test_code_comes_from_where_the_sdk_put_it(form, tmp_path, nothing_left):
    files = {"train.py": PRINTS, "lib/part.py": "VALUE = 1\n"}
    if form == "folder":
        where = tmp_path / "source"
        for name, text in files.items():
            (where / name).parent.mkdir(parents=True, exist_ok=True)
            (where / name).write_text(text)
        uris = {host: str(where) for host in HOSTS}
    else:
        source = tarball(tmp_path / "sourcedir.tar.gz", files)
        uris = {host: f"file://{source}" if form == "file-uri" else str(source) for host in HOSTS}
    if form == "network isolation":
        for host in HOSTS:
            channel = tmp_path / host / "input" / "data" / "code"
            channel.mkdir(parents=True)
            uris[host] = str(tarball(channel / "sourcedir.tar.gz", files))
    _, codes, outs = both(
        tmp_path,
        nothing_left,
        lambda host: {"sagemaker_submit_directory": uris[host]},
        sagemaker_program="train.py",
        lr=0.1,
    )
    assert codes == [0, 0], outs
    for rank, host in enumerate(HOSTS):
        code = tmp_path / host / "code"
        assert f"[{rank} {host}] ran {rank} ['--lr', '0.1'] {code}" in outs[host]
        assert sorted(path.name for path in code.iterdir()) == ["lib", "train.py"]


@pytest.mark.parametrize("name", ["pkg.work", "pkg"])
def test_a_module_is_an_entry_point(name, tmp_path, nothing_left):
    base = tree(tmp_path, "algo-1", ("algo-1",), sagemaker_program=name, lr=0.1)
    (base / "code" / "pkg").mkdir(parents=True)
    (base / "code" / "pkg" / "part.py").write_text("VALUE = 7\n")
    for module in ("work", "__main__"):
        (base / "code" / "pkg" / f"{module}.py").write_text(
            f"import sys\nfrom .part import VALUE\nprint('{module}', VALUE, sys.argv[1:], flush=True)\n"
        )
    codes, outs = Cluster(tmp_path, nothing_left, ("algo-1",)).end()
    assert codes == [0], outs
    said = "work" if name == "pkg.work" else "__main__"
    assert f"[0 algo-1] {said} 7 ['--lr', '0.1']" in outs["algo-1"]


def test_a_code_folder_with_files_is_never_unpacked_into(tmp_path, nothing_left):
    source = tarball(tmp_path / "sourcedir.tar.gz", {"train.py": "raise SystemExit('fetched')"})
    for host in HOSTS:
        (tmp_path / host / "code").mkdir(parents=True)
        (tmp_path / host / "code" / "train.py").write_text(PRINTS)
    _, codes, outs = both(tmp_path, nothing_left, sagemaker_program="train.py", sagemaker_submit_directory=str(source))
    assert codes == [0, 0], outs


def test_other_code_on_one_host_is_refused(tmp_path, nothing_left):
    uris = {host: str(tarball(tmp_path / f"{host}.tar.gz", {"train.py": PRINTS + f"# {host}\n"})) for host in HOSTS}
    job, codes, outs = both(
        tmp_path, nothing_left, lambda host: {"sagemaker_submit_directory": uris[host]}, sagemaker_program="train.py"
    )
    assert codes == [64, 64], outs
    (text,) = job.failures()
    assert text.startswith("mismatch: algo-2, exit 64: source differs: ")


@pytest.mark.parametrize(
    ("program", "files", "says"),
    [
        ("absent.py", {"train.py": PRINTS}, "'absent.py' does not exist"),
        ("lib", {"lib/part.py": PRINTS}, "'lib' is a folder"),
        ("../train.py", {"train.py": PRINTS}, "allowed: a path inside the code folder"),
    ],
)
def test_an_entry_point_that_is_none_is_one_clear_error_on_all_hosts(program, files, says, tmp_path, nothing_left):
    source = tarball(tmp_path / "s.tar.gz", files)
    job, codes, outs = both(tmp_path, nothing_left, sagemaker_program=program, sagemaker_submit_directory=str(source))
    assert codes == [64, 64], outs
    (text,) = job.failures()
    assert says in text


def test_a_broken_archive_of_one_host_ends_all_with_its_reason(tmp_path, nothing_left):
    good = tarball(tmp_path / "good.tar.gz", {"train.py": PRINTS * 1000})
    bad = tmp_path / "bad.tar.gz"
    bad.write_bytes(good.read_bytes()[:-40])
    uris = {"algo-1": str(good), "algo-2": str(bad)}
    job, codes, outs = both(
        tmp_path, nothing_left, lambda host: {"sagemaker_submit_directory": uris[host]}, sagemaker_program="train.py"
    )
    assert codes == [64, 64], outs
    (text,) = job.failures()
    assert text.startswith(f"setup: algo-2, exit 64: sagemaker_submit_directory '{bad}'")
    assert list((tmp_path / "algo-2" / "code").iterdir()) == []


@pytest.mark.parametrize("who", HOSTS)
def test_a_host_whose_preparation_cannot_even_start_tells_the_others(who, tmp_path, nothing_left):
    """An address longer than a command line may be; without a word from this host the others wait for the gate."""
    for host in HOSTS:
        uri = {"sagemaker_submit_directory": "s3://b/" + "x" * 200_000} if host == who else {}
        code = tree(tmp_path, host, HOSTS, sagemaker_program="train.py", **uri) / "code"
        if host != who:
            code.mkdir()
            (code / "train.py").write_text(PRINTS)
    job = Cluster(tmp_path, nothing_left)
    codes, outs = job.end(timeout=30)
    assert codes == [64, 64], outs
    (text,) = job.failures()
    assert text.startswith(f"setup: {who}, exit 64: ")
    assert "Argument list too long" in text


@pytest.mark.parametrize(
    "wrong",
    [
        {"algorun_args": "'" + "x" * 90_000},
        {"sagemaker_program": "x" * 300},
        {"sagemaker_program": "\ud800.py"},
        {"sagemaker_program": "loop.py"},
    ],
    ids=["a text longer than a message", "a name that no file has", "half a character", "a link to itself"],
)
def test_a_strange_hyperparameter_of_one_host_ends_all(wrong, tmp_path, nothing_left):
    for host in HOSTS:
        one = {"sagemaker_program": "train.py"} | (wrong if host == "algo-2" else {})
        code = tree(tmp_path, host, HOSTS, **one) / "code"
        code.mkdir()
        (code / "train.py").write_text(PRINTS)
        (code / "loop.py").symlink_to("loop.py")
    job = Cluster(tmp_path, nothing_left)
    codes, outs = job.end(timeout=30)
    assert codes == [64, 64], outs
    (text,) = job.failures()
    assert text.startswith("configuration: algo-2, exit 64: hyperparameter ")


def test_options_that_contradict_the_plan_are_one_error_for_all(tmp_path, nothing_left):
    wishes = {"sagemaker_mpi_enabled": True, "sagemaker_mpi_custom_mpi_options": "-np 7"}
    for host in HOSTS:
        code = tree(tmp_path, host, HOSTS, sagemaker_program="train.py", **wishes) / "code"
        code.mkdir()
        (code / "train.py").write_text(PRINTS)
    job = Cluster(tmp_path, nothing_left)
    codes, outs = job.end(timeout=30)
    assert codes == [64, 64], outs
    (text,) = job.failures()
    assert "'-np' contradicts the plan" in text


def test_a_script_without_its_mode_runs_under_the_shell_that_it_names(tmp_path, nothing_left):
    base = tree(tmp_path, "algo-1", ("algo-1",), sagemaker_program="go.sh")
    (base / "code").mkdir()
    (base / "code" / "go.sh").write_text('#!/usr/bin/env bash\nwords=(a b)\necho "bash ${words[1]}"\n')
    done = algorun("train", cwd=tmp_path, ALGORUN_TEST=nothing_left, SAGEMAKER_BASE_DIR=str(base))
    assert done.code == 0, done.text
    assert "[0 algo-1] bash b" in done.out
