"""Colours of an image, whatever Pillow calls its mode, as RGB with 8 bits per channel; or a refusal to guess them."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# Modes without a known white: Pillow would clip nearly all of their pixels to white or black.
NO_RANGE = {
    "I": "has 32-bit or signed numbers as pixels, and the file does not say which of them is white",
    "F": "has floating-point numbers as pixels, and the file does not say which of them is white",
    "LAB": "has LAB colours, which Pillow cannot convert",
}
WHITE = (255, 255, 255, 255)
BITS_PER_SAMPLE, PHOTOMETRIC = 258, 262  # tags of TIFF
WHITE_IS_ZERO = 0  # a value of the second; Pillow follows it up to 8 bits
PNG_BITS = 24  # which byte of a PNG says how many bits a sample has
DIM_BITS = 12  # what medical devices and cameras put into files of 16 bits


class UnusableImageError(Exception):
    """Why an image is refused that Pillow can decode, and the fix."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(why)
        self.fix = fix


def check_mode(image: Image.Image) -> None:
    """Raises UnusableImageError if the file does not say how bright its pixels are. Reads no pixel."""
    if image.mode in NO_RANGE:
        raise UnusableImageError(NO_RANGE[image.mode], "save it with 8 bits per channel")


def has_16_bits(image: Image.Image) -> bool:
    """Whether the file has 16 bits per channel. Call it before the pixels are loaded."""
    raw = [str(tile[3]) for tile in getattr(image, "tile", ())]
    return image.format in ("PNG", "TIFF") and any(";16" in mode or ";12" in mode for mode in raw)


def to_rgb(image: Image.Image, deep: bool, head: Callable[[], bytes]) -> Image.Image:
    """The image as RGB; transparent pixels become white, as transformers makes them. `deep`: what `has_16_bits` said.
    `head` reads the first bytes of the file. Raises UnusableImageError."""
    if image.mode.startswith("I;16"):
        return _from_16_bits(image, head).convert("RGB")
    if deep and image.mode in ("L", "LA", "RGB", "RGBA"):  # Pillow has kept the upper 8 bits
        bands = (image.getchannel(name) for name in image.getbands() if name != "A")
        brightest = max(int(np.asarray(band).max()) for band in bands)
        if 0 < brightest < 2 ** (DIM_BITS - 8):
            raise _dim()
    if image.format == "PNG" and image.mode in ("L", "RGB") and "transparency" in image.info:
        image.info["transparency"] = _in_8_bits(image.info["transparency"], head()[PNG_BITS])
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, WHITE), rgba).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _in_8_bits(colour: int | tuple[int, ...], bits: int) -> int | tuple[int, ...]:
    """The transparent colour of a PNG as the pixels are: Pillow scales these alone to 8 bits."""
    if isinstance(colour, tuple):
        return tuple(each >> (bits - 8) for each in colour)
    return colour * 255 // ((1 << bits) - 1)


def _from_16_bits(image: Image.Image, head: Callable[[], bytes]) -> Image.Image:
    levels = np.asarray(image)
    grey = (levels >> (_depth(image, levels, head) - 8)).astype(np.uint8)
    if image.format == "TIFF" and getattr(image, "tag_v2", {}).get(PHOTOMETRIC) == WHITE_IS_ZERO:
        grey = WHITE[0] - grey
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[levels == transparent] = WHITE[0]
    return Image.fromarray(grey)


def _depth(image: Image.Image, levels: NDArray[np.uint16], head: Callable[[], bytes]) -> int:
    """The number of bits that white has. Raises UnusableImageError if the file leaves it open."""
    brightest = int(levels.max())
    if image.format == "TIFF" and (bits := int(getattr(image, "tag_v2", {}).get(BITS_PER_SAMPLE, (16,))[0])) < 16:
        return bits
    measured = _sbit(head()) if image.format == "PNG" and brightest < 2**15 else None
    if measured:
        # sBIT says how many bits were measured. PNG wants them as the upper ones, so the lower ones of a value are zeros or
        # repeat its upper ones. Other lower bits show that the writer has left the values as they were measured.
        unscaled = brightest < 2**measured and bool(np.any(levels & (2 ** (16 - measured) - 1)))
        return measured if unscaled else 16
    if 0 < brightest < 2**DIM_BITS:
        raise _dim()
    return 16


def _sbit(head: bytes) -> int | None:
    """The number in the chunk sBIT of a grey PNG, 8 to 16; None if it has none."""
    _, found, after = head.partition(b"IDAT")[0].partition(b"\0\0\0\1sBIT")
    return after[0] if found and after and 8 <= after[0] <= 16 else None


def _dim() -> UnusableImageError:
    return UnusableImageError(
        f"has 16 bits per channel and uses the lowest {DIM_BITS} alone, so it is nearly black, or its values have "
        f"{DIM_BITS} bits and white is {2**DIM_BITS - 1}",
        f"multiply {DIM_BITS}-bit values by {2 ** (16 - DIM_BITS)}, or save them with 8 bits",
    )
