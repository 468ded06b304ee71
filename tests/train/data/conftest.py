"""The same images as folders and as tar files."""

import pytest

from tests.train.data.tar_files import CLASSES, pack
from tests.train.training_runs import write_images


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images") / "folder", CLASSES, 12)


@pytest.fixture
def tars(folder, tmp_path):
    return pack(folder, tmp_path / "tars")
