"""Files that lie on the disk of some hosts only: ranks are threads, each with a folder that stands for its host's."""

from __future__ import annotations

import pytest

from algorun_smdistributed.ranks import host_files
from algorun_train.common.errors import UserError
from tests.train.thread_communicator import as_ranks


def read(folders, wanted=lambda rank: True, missing="no file anywhere"):
    """What each rank gets of its own folder's file, and which ranks have read theirs."""
    reads = []

    def content(file):
        reads.append(file)
        return file.read_text()

    def work(comm):
        return host_files.read_on_hosts(comm, folders[comm.rank] / "part.pt", content, wanted(comm.rank), missing)

    return as_ranks(len(folders), work), reads


@pytest.fixture
def folders(tmp_path):
    made = [tmp_path / f"host{rank}" for rank in range(3)]
    for folder in made[1:]:
        folder.mkdir()
        (folder / "part.pt").write_text(f"of {folder.name}")
    return made


def test_a_host_without_the_file_gets_it_from_the_first_that_has_it(folders):
    assert read(folders) == (["of host1"] * 3, [folders[1] / "part.pt"])


def test_where_every_host_has_the_file_that_wants_it_each_reads_its_own(folders):
    rows, reads = read(folders, wanted=lambda rank: rank > 0)
    assert rows == [None, "of host1", "of host2"]
    assert sorted(reads) == [folders[1] / "part.pt", folders[2] / "part.pt"]


def test_a_file_that_nobody_has_is_an_error_on_all_ranks_or_none(tmp_path):
    nowhere = [tmp_path / "a", tmp_path / "b"]
    assert read(nowhere, missing=None) == ([None, None], [])
    with pytest.raises(UserError, match=r"^no file anywhere$"):
        read(nowhere)


def test_the_names_are_those_of_all_hosts(folders):
    (folders[2] / "more.pt").touch()
    (folders[2] / "other.txt").touch()
    assert as_ranks(3, lambda comm: host_files.names(comm, folders[comm.rank], "*.pt")) == [["more.pt", "part.pt"]] * 3
