"""Pixels of images in every mode and format, beside Pillow's own; and what is refused."""

import io
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from algorun_train.common.errors import UserError
from algorun_train.data.image_decoding import CorruptImageError, check_header, decode
from algorun_train.data.listing import Listing
from tests.conftest import examples

SIDE = 12


def listed(path: Path) -> Listing:
    return Listing("train", str(path.parent), ("a",), (path.name,), (0,))


def saved(path: Path, image: Image.Image, **options: object) -> Listing:
    image.save(path, **options)
    return listed(path)


def noise(width: int, height: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


def resize_and_crop(image: Image.Image, side: int) -> np.ndarray:
    """torchvision's Resize(side) and CenterCrop(side), and transformers' shortest_edge and crop_size, by Pillow alone."""
    short, long = sorted(image.size)
    size = (int(side * long / short), side) if image.width >= image.height else (side, int(side * long / short))
    left, top = (size[0] - side) // 2, (size[1] - side) // 2
    resized = image.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(resized.crop((left, top, left + side, top + side))).astype(int)


@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 40), st.integers(1, 8))
@examples(150)
def test_any_size_and_orientation_has_the_pixels_of_pillow(shared_folder, width, height, side, orientation):
    exif = Image.Exif()
    exif[274] = orientation
    path = shared_folder / "image.png"
    listing = saved(path, Image.fromarray(noise(width, height, seed=width)), exif=exif)
    with Image.open(path) as image:
        expected = resize_and_crop(ImageOps.exif_transpose(image).convert("RGB"), side)
    # one level: rows and columns are rounded in another order than if the whole image were turned first
    assert np.abs(decode(listing, 0, side).astype(int) - expected).max() <= 1


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("images")


@pytest.mark.parametrize(("mode", "transparent"), [("L", 200), ("RGB", (200, 0, 0)), ("P", 1), ("P", bytes([255, 0]))])
def test_transparent_colours_become_white(tmp_path, mode, transparent):
    image = Image.new(mode, (8, 8), 1 if mode == "P" else transparent)
    if mode == "P":
        image.putpalette([0, 0, 0, 9, 9, 9])
    assert decode(saved(tmp_path / "a.png", image, transparency=transparent), 0, 8).min() == 255


def png(rows: list[bytes], bits: int, colour: int, *more: tuple[bytes, bytes]) -> bytes:
    """A PNG of 4 columns. `colour`: 0 grey, 2 RGB; `more`: chunks in front of the pixels."""
    head = struct.pack(">IIBBBBB", 4, len(rows), bits, colour, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    chunks = [(b"IHDR", head), *more, (b"IDAT", pixels), (b"IEND", b"")]
    data = b"".join(struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + data


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_a_transparent_grey_has_the_bits_of_the_pixels(tmp_path, bits):
    """Programs that make PNG files smaller write grey images with few bits. All levels but the transparent one stay."""
    most = 2**bits - 1
    for clear in {0, most // 3, most}:
        levels = (0, most // 3, most // 3 * 2, most)
        row = int("".join(f"{level:0{bits}b}" for level in levels).ljust(8, "0"), 2)
        data = png([row.to_bytes(max(bits // 2, 1), "big")] * 4, bits, 0, (b"tRNS", struct.pack(">H", clear)))
        (tmp_path / "a.png").write_bytes(data)
        expected = [255 if level == clear else level * 255 // most for level in levels]
        assert decode(listed(tmp_path / "a.png"), 0, 4)[0, :, 0].tolist() == expected


@pytest.mark.parametrize("bits", [8, 16])
def test_a_transparent_colour_has_the_bits_of_the_pixels(tmp_path, bits):
    clear, other = ([each << (bits - 8) for each in colour] for colour in ((10, 20, 30), (200, 100, 50)))
    form = ">3B" if bits == 8 else ">3H"
    row = struct.pack(form, *clear) + struct.pack(form, *other) * 3
    (tmp_path / "a.png").write_bytes(png([row] * 4, bits, 2, (b"tRNS", struct.pack(">3H", *clear))))
    assert decode(listed(tmp_path / "a.png"), 0, 4)[0, :2].tolist() == [[255, 255, 255], [200, 100, 50]]


def test_an_adobe_cmyk_jpeg_is_not_inverted(tmp_path):
    """Adobe writes CMYK inverted, with a marker APP14 that says so; Pillow writes the same."""
    listing = saved(tmp_path / "a.jpg", Image.new("CMYK", (16, 16), (0, 255, 255, 0)), quality=95)
    assert b"Adobe" in (tmp_path / "a.jpg").read_bytes()
    assert decode(listing, 0, 16)[8, 8].tolist() == pytest.approx([255, 0, 0], abs=3)


def test_16_bit_grey_keeps_its_brightness(tmp_path):
    levels = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    for name in ("a.png", "little.tif", "lzw.tif"):
        options = {"compression": "tiff_lzw"} if name == "lzw.tif" else {}
        grey = decode(saved(tmp_path / name, Image.fromarray(levels), **options), 0, 16)
        assert np.array_equal(grey[..., 0], levels >> 8), name
    (tmp_path / "big.tif").write_bytes(tiff(levels.astype(">u2").tobytes(), 16, ">"))
    assert np.array_equal(decode(listed(tmp_path / "big.tif"), 0, 16)[..., 0], levels >> 8)
    transparent = saved(tmp_path / "t.png", Image.fromarray(levels), transparency=0)
    assert decode(transparent, 0, 16)[0, 0].tolist() == [255] * 3


def test_a_tiff_whose_white_is_zero_is_inverted_with_any_number_of_bits(tmp_path):
    """As scanners and exports of X-rays write it (DICOM's MONOCHROME1)."""
    levels = np.linspace(0, 65535, 256).astype("<u2").reshape(16, 16)
    pixels = {}
    for bits, data in ((8, (levels >> 8).astype(np.uint8)), (16, levels)):
        (tmp_path / "a.tif").write_bytes(tiff(data.tobytes(), bits, white=0))
        pixels[bits] = decode(listed(tmp_path / "a.tif"), 0, 16)
    assert np.array_equal(pixels[16], pixels[8])
    assert np.array_equal(pixels[16][..., 0], 255 - (levels >> 8))


def tiff(data: bytes, bits: int, order: str = "<", sample: int = 1, side: int = 16, white: int = 1) -> bytes:
    """A grey TIFF of one strip. `sample`: 1 unsigned, 2 signed, 3 float; `white`: 0 if white is 0."""
    tags = [
        (256, side),
        (257, side),
        (258, bits),
        (259, 1),
        (262, white),
        (273, 8 + 2 + 9 * 12 + 4),
        (277, 1),
        (279, len(data)),
        (339, sample),
    ]
    entries = b"".join(struct.pack(order + "HHIH2x" if tag not in (273, 279) else order + "HHII", tag, 3 if tag not in (273, 279) else 4, 1, value) for tag, value in sorted(tags))  # fmt: skip
    start = b"II*\0" if order == "<" else b"MM\0*"
    return start + struct.pack(order + "IH", 8, len(tags)) + entries + struct.pack(order + "I", 0) + data


def with_sbit(path: Path, bits: int) -> None:
    data, chunk = path.read_bytes(), b"sBIT" + bytes([bits])
    path.write_bytes(data[:33] + struct.pack(">I", 1) + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[33:])


def test_values_of_12_bits_are_grey_where_the_file_says_so_and_refused_where_it_does_not(tmp_path):
    levels = np.arange(0, 4096, 16, np.uint16).reshape(16, 16) + np.uint16(15)
    listing = saved(tmp_path / "a.png", Image.fromarray(levels))
    for path in (tmp_path / "a.png", tmp_path / "a.tif"):
        Image.fromarray(levels).save(path)
        with pytest.raises(CorruptImageError, match="uses the lowest 12 alone.*multiply 12-bit values by 16.*skip-bad"):
            decode(listed(path), 0, 16)
    with_sbit(tmp_path / "a.png", 12)  # not scaled to 16 bits, which the lower bits show
    assert np.array_equal(decode(listing, 0, 16)[..., 0], levels >> 4)
    Image.fromarray(levels // 256 * 16).save(tmp_path / "a.png")
    with_sbit(tmp_path / "a.png", 12)  # scaled, as PNG asks for: a dark image
    assert decode(listing, 0, 16).max() == 0
    Image.fromarray(np.zeros((16, 16), np.uint16)).save(tmp_path / "a.png")
    assert decode(listing, 0, 16).max() == 0  # black with any number of bits
    pairs = levels.reshape(-1, 2).astype(np.uint32)
    packed = np.stack([pairs[:, 0] >> 4, (pairs[:, 0] & 15) << 4 | pairs[:, 1] >> 8, pairs[:, 1] & 255], 1)
    (tmp_path / "b.tif").write_bytes(tiff(packed.astype(np.uint8).tobytes(), 12))
    assert np.array_equal(decode(listed(tmp_path / "b.tif"), 0, 16)[..., 0], levels >> 4)


def test_12_bits_in_a_colour_png_are_refused(tmp_path):
    pixels = np.full((4, 4, 3), 4000, ">u2")
    (tmp_path / "a.png").write_bytes(png([row.tobytes() for row in pixels], 16, 2))
    with pytest.raises(CorruptImageError, match="uses the lowest 12 alone"):
        decode(listed(tmp_path / "a.png"), 0, 4)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("float.tif", tiff(np.ones((16, 16), "<f4").tobytes(), 32, sample=3), "has floating-point numbers as pixels"),
        ("int.tif", tiff(np.ones((16, 16), "<i4").tobytes(), 32, sample=2), "has 32-bit or signed numbers as pixels"),
        ("signed.tif", tiff(np.ones((16, 16), "<i2").tobytes(), 16, sample=2), "has 32-bit or signed numbers as pixels"),
        ("eps.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 16 16\n%%EndComments\nshowpage\n", "content is PostScript"),
        ("avif.jpg", b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf" + bytes(40), "content is AVIF"),
        ("heic.jpg", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40), "content is HEIC"),
        ("blp.png", b"BLP2" + bytes(200), "content is BLP"),
        ("dds.png", b"DDS " + bytes(200), "content is DDS"),
        ("jp2.jpg", b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(40), "content is JPEG 2000"),
        ("page.jpg", b"\n<!DOCTYPE html><title>403 Forbidden</title>", "content is an HTML page"),
        ("lfs.png", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "content is a pointer of Git LFS"),
        ("zeros.jpg", bytes(4096), "content is full of zeros"),
        ("empty.png", b"", "content is empty"),
        ("spider.png", struct.pack(">27f", 1, 1, 0, 0, 1, *[0] * 6, 1, 4, *[0] * 14) + bytes(900), "header is damaged or unknown"),
        ("cut.png", b"\x89PNG\r\n\x1a\n\0\0", "header is damaged or unknown"),
    ],
)  # fmt: skip
def test_what_is_no_image_that_a_job_reads_is_named_at_the_header_and_when_decoded(tmp_path, name, data, words):
    (tmp_path / name).write_bytes(data)
    listing = listed(tmp_path / name)
    messages = []
    for look in (lambda: check_header(listing, 0), lambda: decode(listing, 0, SIDE)):
        with pytest.raises(CorruptImageError) as error:
            look()
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    for part in (f"channel 'train': {tmp_path / name} ", words, "; allowed: JPEG, PNG, WEBP, BMP, TIFF, GIF, with ", "; fix: ",
                 "--skip-bad-samples"):  # fmt: skip
        assert part in messages[0]


def test_postscript_starts_no_ghostscript(tmp_path):
    """A stand-in for gs on PATH would leave a file."""
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    (tmp_path / "gs").chmod(0o755)
    (tmp_path / "a.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 16 16\n%%EndComments\nshowpage\n%%EOF\n"
    )
    code = (
        "import sys; from algorun_train.data.image_decoding import *; from algorun_train.data.listing import Listing\n"
        "try: decode(Listing('train', sys.argv[1], ('a',), ('a.png',), (0,)), 0, 8)\n"
        "except CorruptImageError as error: print(error)"
    )
    environ = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run = subprocess.run(
        [sys.executable, "-c", code, tmp_path], env=environ, capture_output=True, text=True, check=True
    )
    assert "content is PostScript" in run.stdout
    assert not (tmp_path / "started").exists()


@given(st.sampled_from(["a.png", "a.jpg", "a.webp", "a.bmp", "a.tif", "a.gif"]), st.data())
@examples(300)
def test_damage_anywhere_is_an_image_or_one_error(shared_folder, name, data):
    """Each decoder has errors of its own: struct.error, KeyError, IndexError, zlib.error, ..."""
    made = io.BytesIO()
    Image.fromarray(noise(24, 16)).save(made, Image.registered_extensions()[Path(name).suffix])
    content = bytearray(made.getvalue())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (shared_folder / name).write_bytes(content[: data.draw(st.integers(0, len(content)))])
    for look in (lambda listing: check_header(listing, 0), lambda listing: decode(listing, 0, SIDE)):
        try:
            look(listed(shared_folder / name))
        except CorruptImageError as error:
            assert str(shared_folder / name) in str(error)  # noqa: PT017
        except MemoryError:
            pass


def test_an_error_of_a_decoder_s_own_is_a_corrupt_image(tmp_path):
    """A second IHDR, shorter than it has to be, behind the pixels: Pillow raises struct.error."""
    path = tmp_path / "a.png"
    Image.new("RGB", (4, 4)).save(path)
    data = path.read_bytes()
    end = data.index(b"IEND") - 4
    path.write_bytes(data[:end] + b"\0\0\0\0IHDR\xa8\xa1\xae\x0a" + data[end:])
    with pytest.raises(CorruptImageError, match=r"a\.png is a corrupt image: .*; allowed: .*; fix: "):
        decode(listed(path), 0, 4)


def test_a_jpeg_with_a_second_picture_is_read_as_its_first(tmp_path):
    """Phones and cameras write such files (MPO) under .jpg."""
    first, second = Image.new("RGB", (16, 16), (200, 0, 0)), Image.new("RGB", (16, 16), (0, 0, 200))
    listing = saved(tmp_path / "a.jpg", first, format="MPO", save_all=True, append_images=[second])
    assert decode(listing, 0, 8)[4, 4].tolist() == pytest.approx([200, 0, 0], abs=3)


def test_of_an_animation_the_first_picture_is_read(tmp_path):
    pictures = [Image.new("RGB", (8, 8), (level, level, level)) for level in (250, 10)]
    for name in ("a.gif", "a.webp", "a.png"):
        listing = saved(tmp_path / name, pictures[0], save_all=True, append_images=pictures[1:], duration=100)
        assert decode(listing, 0, 8).mean() == pytest.approx(250, abs=2)


def test_damaged_exif_leaves_the_image_as_it_is(tmp_path):
    made = io.BytesIO()
    Image.new("RGB", (16, 8), (200, 0, 0)).save(made, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f\0")
    (tmp_path / "a.jpg").write_bytes(made.getvalue())
    assert decode(listed(tmp_path / "a.jpg"), 0, 8)[4, 4].tolist() == pytest.approx([200, 0, 0], abs=3)


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_a_large_jpeg_is_decoded_at_reduced_size_and_hardly_differs(tmp_path, orientation):
    smooth = Image.fromarray(noise(33, 25)).resize((517, 389), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[274] = orientation
    listing = saved(tmp_path / "a.jpg", smooth, quality=92, exif=exif)
    with Image.open(tmp_path / "a.jpg") as image:
        expected = resize_and_crop(ImageOps.exif_transpose(image).convert("RGB"), 32)
    difference = np.abs(decode(listing, 0, 32).astype(int) - expected)
    assert difference.mean() < 0.6
    assert difference.max() <= 20


def test_more_pixels_than_pillow_allows_are_refused_by_their_number(tmp_path):
    (tmp_path / "a.png").write_bytes(
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + (head := b"IHDR" + struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0))
        + struct.pack(">I", zlib.crc32(head)) + struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    )  # fmt: skip
    for look in (lambda listing: check_header(listing, 0), lambda listing: decode(listing, 0, SIDE)):
        with pytest.raises(CorruptImageError, match="corrupt image: Image size .400000000 pixels. exceeds limit"):
            look(listed(tmp_path / "a.png"))


def test_links_and_permissions_are_named(tmp_path):
    (tmp_path / "a.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(
        UserError, match=r"is a link to .*nowhere\.png, which is missing on this host; allowed: .*fix: copy"
    ):
        decode(listed(tmp_path / "a.png"), 0, 8)
    (tmp_path / "b.png").mkdir()
    with pytest.raises(CorruptImageError, match=r"b\.png cannot be read: Is a directory"):
        decode(listed(tmp_path / "b.png"), 0, 8)
