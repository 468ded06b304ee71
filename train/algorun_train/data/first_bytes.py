"""What the first bytes of a file say about it: text in UTF-8, or something else."""

import json

LFS = b"version https://git-lfs.github.com/spec/"  # how every pointer of Git LFS begins
# How files begin that are no text, what they are, and what helps.
OTHERS = (
    (b"\x1f\x8b", "gzip", "give it that suffix, such as .jsonl.gz"),
    (b"BZh91AY&SY", "bzip2", "give it that suffix, such as .jsonl.bz2"),
    (b"\xfd7zXZ\x00", "xz", "give it that suffix, such as .jsonl.xz"),
    (b"\x28\xb5\x2f\xfd", "zstd", "give it that suffix, such as .jsonl.zst"),
    (b"PAR1", "parquet", "give it the suffix .parquet"),
    (b"PK\x03\x04", "zip", "unpack it"),
    (b"%PDF-", "PDF", "take the text out of it"),
)
CHECKED = 8192  # bytes: a zero among the first ones means that a file is no text, as for grep and git


def not_text(head: bytes) -> str | None:
    """What is wrong with a text file that begins with `head`, as the end of an error; None if nothing is."""
    if fault := not_utf8(head):
        return fault
    if b"\0" in head[:CHECKED]:
        return "is no text: it has zeros in it; allowed: text in UTF-8; fix: remove the file"
    return None


def not_utf8(head: bytes) -> str | None:
    """As `not_text`, by the first bytes alone: a pointer, another kind of file, or by its mark or zeros UTF-16 or UTF-32."""
    if fault := pointer(head):
        return fault
    for begin, kind, fix in OTHERS:
        if head.startswith(begin) and not (
            kind in ("bzip2", "parquet") and head[:CHECKED].isascii()
        ):  # words of a text
            return f"is no text: its content is {kind}; allowed: text in UTF-8; fix: {fix}, or remove the file"
    encoding = json.detect_encoding(head[:4])
    if encoding.startswith("utf-8"):
        return None
    name = encoding.replace("-le", "le").replace("-be", "be").upper()
    return (
        f"is no text in UTF-8: it begins as {name} does; allowed: text in UTF-8; "
        f"fix: iconv -f {name} -t UTF-8, or remove the file if it is no text"
    )


def pointer(head: bytes) -> str | None:
    """As `not_text`, if the file is what Git leaves in place of a file that Git LFS has not fetched."""
    if head.startswith(LFS):
        return (
            "is a pointer of Git LFS, not the file itself; allowed: the file; fix: git lfs pull, then upload it again"
        )
    return None
