"""What a file is that Pillow may not open, by its first bytes."""

HEAD_BYTES = 64
BEGINNINGS = {
    b"%!PS": "PostScript", b"\xc5\xd0\xd3\xc6": "PostScript", b"%PDF": "PDF", b"8BPS": "a Photoshop document",
    b"BLP": "BLP", b"DDS ": "DDS", b"\0\0\0\x0cjP  ": "JPEG 2000", b"\xff\x4f\xff\x51": "JPEG 2000",
    b"\xff\x0a": "JPEG XL", b"\0\0\0\x0cJXL ": "JPEG XL", b"\0\0\1\0": "an icon (ICO)", b"qoif": "QOI",
    b"version https://git-lfs": "a pointer of Git LFS, not the file that it stands for", b"\x93NUMPY": "a NumPy array",
    b"PK\3\4": "a zip archive", b"\x1f\x8b": "gzip",
}  # fmt: skip
BRANDS = {b"avif": "AVIF", b"avis": "AVIF"} | dict.fromkeys((b"heic", b"heix", b"hevc", b"mif1", b"msf1"), "HEIC")
TEXTS = {b"<!doctype html": "an HTML page", b"<html": "an HTML page", b"<svg": "SVG", b"<?xml": "XML, such as SVG",
         b"{": "JSON"}  # fmt: skip


def foreign_format(head: bytes) -> str | None:
    """What a file with these first bytes is; None if that is unknown, or a damaged image of a format that is allowed."""
    if not head:
        return "empty"
    if not any(head):
        return "full of zeros"
    if head[4:8] == b"ftyp":
        return BRANDS.get(head[8:12], "a film or an image of a film's format (MP4)")
    if head[:4] == b"RIFF":
        return None if head[8:12] == b"WEBP" else "RIFF, such as AVI or WAV"
    found = (name for start, name in BEGINNINGS.items() if head.startswith(start))
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return next(found, None) or next((name for start, name in TEXTS.items() if text.startswith(start)), None)
