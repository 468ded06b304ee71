"""Text files as they come from other programs: byte order marks, other encodings, pointers of Git LFS, line ends."""

import codecs

import pytest

from algorun_train.common.errors import UserError
from algorun_train.data import corpus, token_files
from algorun_train.data.token_files import documents
from tests.train.data.documents_of import Bad, check
from tests.train.data.test_text import ALONE

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:665232916d127eb726be0e4a8ea09109\nsize 146946961\n"
BOM = codecs.BOM_UTF8


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(BOM + b"fox\n", ["fox\n"], id="a mark is no text"),
        pytest.param(BOM, [], id="a mark alone is no document"),
        pytest.param(b"fox" + BOM + b"dog", ["fox\ufeffdog"], id="in the middle it is a character"),
        pytest.param(
            "fox".encode("utf-16"),
            [Bad("is no text in UTF-8: it begins as UTF-16 does; .* iconv -f UTF-16 ")],
            id="utf-16",
        ),
        pytest.param(
            "fox".encode("utf-16-le"),
            [Bad("is no text in UTF-8: it begins as UTF-16LE does")],
            id="utf-16 without a mark",
        ),
        pytest.param(
            "fox".encode("utf-32-be"),
            [Bad("is no text in UTF-8: it begins as UTF-32BE does")],
            id="utf-32 without a mark",
        ),
        pytest.param(b"fox and dog\0", [Bad("is no text: it has zeros in it")], id="zeros"),
        pytest.param(POINTER, [Bad("is a pointer of Git LFS, not the file itself; .*git lfs pull")], id="lfs"),
        pytest.param(
            "fox\ndög".encode("latin-1"), [Bad("is not UTF-8: invalid .* in line 2, byte 5 of the file")], id="latin-1"
        ),
        pytest.param(
            "a\u2028b\u0085c\x0cd\x1ce\r\nf\rg".encode(), ["a\u2028b\u0085c\x0cd\x1ce\r\nf\rg"], id="line ends are kept"
        ),
    ],
)
def test_what_a_text_file_may_hold(tmp_path, content, expected):
    (tmp_path / "a.txt").write_bytes(content)
    check(tmp_path / "a.txt", expected)


def test_the_place_of_a_wrong_byte_is_counted_over_all_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(token_files, "BLOCK", 8)
    content = ("été\n" * 50).encode()
    (tmp_path / "a.txt").write_bytes(content + b"fox \xff")
    *pieces, last = documents(tmp_path / "a.txt")
    assert "in line 51, byte 304 of the file" in last.error
    assert last.retracts
    assert not any(piece.ends for piece in pieces)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("fox".encode("utf-16"), "a.txt is no text in UTF-8: it begins as UTF-16 does"),
        (POINTER, "a.txt is a pointer of Git LFS"),
    ],
)
def test_text_of_bytes_has_the_same_rules(tmp_path, content, message):
    """The channel of the bundled models, which read bytes."""
    (tmp_path / "b.txt").write_bytes(BOM + b"fox")
    assert corpus.from_channel("train", tmp_path, ALONE).text == b"fox"
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        corpus.from_channel("train", tmp_path, ALONE)
