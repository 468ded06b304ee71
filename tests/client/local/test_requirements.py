"""A local job's requirements, and its python: neither is another one of the machine."""

from __future__ import annotations

import io
import os
import tarfile

import pytest

from tests.client.local.local_jobs import BUCKET, Local, training
from tests.launcher.whole.wheels import wheel


@pytest.fixture
def local(tmp_path):
    return Local(tmp_path / "root")


def archive(files: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


# `make test` has the launcher's part: launcher/whole/test_job_environment.py.
@pytest.mark.slow
def test_hosts_share_an_environment_below_the_root_and_scripts_run_its_python(
    local, tmp_path, nothing_left, monkeypatch
):
    wheel(tmp_path / "wheels", "algorun_test_lib", "1.0", program="algorun-test-tool")
    other = tmp_path / "other"
    other.mkdir()
    (other / "python").symlink_to("/bin/false")
    monkeypatch.setenv("PATH", f"{other}:{os.environ['PATH']}")
    files = {"run.sh": "python -c 'import algorun_test_lib; print(\"saw it\")' && algorun-test-tool\n"}
    files["requirements.txt"] = f"--no-index\n--find-links {tmp_path}/wheels\nalgorun_test_lib\n"
    for job in ("first", "second"):
        request = training(local.store, job, "", marker=nothing_left, HyperParameters={"sagemaker_program": "run.sh"})
        local.store.put(f"{BUCKET}/code/{job}.tar.gz", archive(files))
        local.platform.create_training_job(**request)
        answer = local.ended(job)
        lines = local.lines(job)
        assert answer["TrainingJobStatus"] == "Completed", (answer, lines)
        assert sum("saw it" in line for line in lines) == 2
        assert sum(f"program 1.0 {tmp_path}/root/environments/" in line for line in lines) == 2
        assert sum("Successfully installed" in line for line in lines) == (job == "first")
    assert len(os.listdir(tmp_path / "root" / "environments")) == 1
