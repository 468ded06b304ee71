"""What a file of a script may hold: NumPy's scalars are plain data, and nothing else of it is."""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import pytest
import torch

from algorun_smdistributed.torch_files import safe_files as files
from algorun_train.common.errors import UserError

SCALARS = [
    np.prod(torch.Size([3, 4])),
    np.float32(0.25),
    np.float64("nan"),
    np.bool_(True),
    np.complex64(1 + 2j),
    np.uint8(255),
    np.float16(-0.0),
    np.str_("größe"),
    np.bytes_(b"a\0b"),
    np.dtype(">i4").type(7),
    np.array([258], ">i4")[0],
]


def kept(path, value):
    torch.save(value, path)
    return files.read_safely(path, "smp.load")


def test_scalars_come_back_with_their_type_and_value(tmp_path):
    back = kept(tmp_path / "content.pt", {"num_params": SCALARS, "steps": 3})
    assert back["steps"] == 3
    for one, other in zip(SCALARS, back["num_params"], strict=True):
        assert type(one) is type(other)
        assert one.tobytes() == other.tobytes() or one == other


class Forged:
    """Pickles as a call of NumPy's scalar with what the test says."""

    def __init__(self, *arguments):
        self.arguments = arguments

    def __reduce__(self):
        return np.float64(1).__reduce__()[0], self.arguments


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(2),
        np.array(1.5),
        np.zeros(1, [("a", "i4")])[0],
        np.datetime64("2026-11-22"),
        Forged(np.dtype("O"), b"x"),
        Forged(np.dtype("f8"), b"short"),
        Forged(np.dtype("f8"), [1]),
        Forged("f8", b"12345678"),
        Forged(np.dtype("U1"), b"\xff\xff\xff\xff"),
    ],
    ids=["array", "array of one", "structure", "time", "object", "few bytes", "no bytes", "no type", "no letter"],
)
def test_everything_else_of_numpy_is_refused(value, tmp_path):
    with pytest.raises(
        UserError, match=r"^/.*content.pt (holds objects of the class|cannot be read as) .*; fix, for a"
    ):
        kept(tmp_path / "content.pt", value)


@pytest.fixture
def allow():
    """torch.serialization.add_safe_globals, for one test."""
    before = torch.serialization.get_safe_globals()
    yield torch.serialization.add_safe_globals
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(before)


ARRAYS = [np.zeros(1).__reduce__()[0], np.ndarray, np.dtype, type(np.dtype("f8"))]


def test_arrays_that_the_script_allows_are_loaded_beside_scalars(allow, tmp_path):
    allow([*ARRAYS, type(np.dtype("i4"))])
    back = kept(tmp_path / "content.pt", {"rows": np.arange(3.0), "lr": np.float64(0.5), "seed": np.int32(7)})
    assert back["rows"].tolist() == [0.0, 1.0, 2.0]
    assert (back["lr"], back["seed"]) == (0.5, 7)
    assert type(back["seed"]) is np.int32


@pytest.mark.parametrize(
    ("value", "others"),
    [
        (np.arange(3.0), argparse.Namespace(lr=0.5)),
        (np.arange(3.0), np.float64(0.5)),
        (np.float64(0.5), np.int32(7)),
    ],
    ids=["array and namespace", "array and scalar", "scalars alone"],
)
def test_whatever_the_script_allows_plain_data_is_loaded(value, others, allow, tmp_path):
    allow(ARRAYS)
    first, second = kept(tmp_path / "content.pt", [value, others])
    assert np.array_equal(first, value)
    assert second == others
    assert set(torch.serialization.get_safe_globals()) >= set(ARRAYS)


def test_what_the_script_has_allowed_stays_allowed(allow, tmp_path):
    before = set(torch.serialization.get_safe_globals())
    allow([argparse.Namespace])
    kept(tmp_path / "content.pt", np.float64(0.5))
    assert set(torch.serialization.get_safe_globals()) == before | {argparse.Namespace}


@pytest.mark.parametrize(
    "value",
    [np.dtype("f8"), {"of": [np.dtype("f8"), np.float64(1)]}, argparse.Namespace(kind=np.dtype("i4"))],
    ids=["alone", "beside a scalar", "in a namespace"],
)
def test_a_type_without_a_scalar_is_refused_by_its_name(value, tmp_path):
    with pytest.raises(UserError, match=r"content.pt holds objects of the class numpy.dtype; allowed: "):
        kept(tmp_path / "content.pt", value)
    with pytest.warns(
        UserWarning, match=r"^user_content holds objects of the class numpy.dtype, .*globals\(\[dtype\]\)"
    ):
        files.warn_of_unreadable("user_content", value)


def test_plain_data_gives_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        files.warn_of_unreadable("user_content", {"scalars": SCALARS, "options": argparse.Namespace(lr=np.float32(1))})


def test_two_writers_of_one_file_have_unfinished_files_of_their_own(tmp_path):
    """In two containers that share the folder, both may be process 1."""
    path, unfinished = tmp_path / "state.pt", []

    def fill(file):
        if not unfinished:
            unfinished.extend(sorted(each.name for each in tmp_path.iterdir()))
            files.write(path, 1, lambda other: other.write(b"of rank 1"))
        file.write(b"of rank 0")

    files.write(path, 0, fill)
    assert unfinished == [".state.pt.rank0.tmp"]
    assert path.read_bytes() == b"of rank 0"
    assert [each.name for each in tmp_path.iterdir()] == ["state.pt"]
