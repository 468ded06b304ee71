from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import push_cloud
import pushing
import pytest
from containers import IMAGE, Hosts, docker, give_back, jobs, why_not


@pytest.fixture(scope="session", autouse=True)
def docker_engine() -> None:
    """It fails, not skips, where Docker or the image is missing."""
    reason = why_not()
    assert not reason, reason


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Callable[..., Hosts]]:
    """Makes jobs of containers; afterwards they are gone, and that is checked."""
    with jobs(tmp_path / "hosts") as make:
        yield make


@pytest.fixture(scope="session")
def digit_images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folders `train` and `validation` of images, written by the image's own Python."""
    folder = tmp_path_factory.mktemp("digits")
    script = Path(__file__).parent / "digit_images.py"
    mounts = ("--volume", f"{script}:/digit_images.py:ro", "--volume", f"{folder}:/out")
    docker(
        *("run", "--rm", "--network", "none", "--entrypoint", "python3", *mounts),
        *(IMAGE, "-I", "/digit_images.py", "/out"),
    )
    yield folder
    give_back(folder)


@pytest.fixture(scope="session")
def cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[push_cloud.Cloud]:
    """What stands for AWS, for all pushes."""
    if missing := push_cloud.missing():
        # As for Docker itself: `make test-all PART=containers` fails, a plain `pytest` skips.
        stop = pytest.fail if "docker" in (request.config.option.markexpr or "") else pytest.skip
        stop(f"not installed: {', '.join(missing)}")
    with push_cloud.started(tmp_path_factory.mktemp("cloud")) as started:
        yield started


@pytest.fixture(scope="session")
def small_image() -> Iterator[str]:
    """The name of what is pushed."""
    with pushing.small_image() as name:
        yield name


@pytest.fixture
def push(cloud: push_cloud.Cloud, small_image: str, tmp_path: Path) -> Iterator[pushing.Push]:
    """`build.sh push` of a user whose docker configuration is as before in the end."""
    with pushing.as_a_user(cloud, small_image, tmp_path) as user:
        yield user
