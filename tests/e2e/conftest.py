from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from containers import IMAGE, Hosts, docker, give_back, leftovers, why_not


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make compose-test` asks for the marker and must fail, not skip, where Docker or the image is missing."""
    mine = [item for item in items if item.get_closest_marker("docker")]
    reason = why_not() if mine else ""
    chosen = mine and "docker" in (mine[0].config.option.markexpr or "")
    for item in mine:
        if reason and not chosen:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Callable[..., Hosts]]:
    """Makes jobs of containers; afterwards they are gone, and that is checked."""
    made: list[Hosts] = []

    def make(*names: str, **options: object) -> Hosts:
        made.append(Hosts(tmp_path / "hosts" / str(len(made)), names, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for job in made:
        job.close()
    assert [left for job in made for left in leftovers(job.run)] == []


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
