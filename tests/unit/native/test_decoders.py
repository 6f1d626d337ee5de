"""Files of pictures, decoded by the code of devices: the pixels are Pillow's, and what is refused is named."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from PIL import Image, features

from tests.support.parts import require
from tests.support.picture_files import chunk, encoded, pillow, png
from tests.support.picture_nets import opencv_linear
from toolchain.errors import InputError
from toolchain.native.pictures import Decoder, format_of, pixels_of

STREAM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def decoder():
    built = Decoder()
    require("libturbojpeg", "libturbojpeg0", built.has("jpeg"))
    require("libpng", "libpng16-16", built.has("png"))
    return built


def contents(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def photograph(width: int, height: int) -> Image.Image:
    """Draw smooth shapes with noise."""
    few = STREAM.integers(0, 256, (max(1, height // 8), max(1, width // 8), 3), dtype=np.uint8)
    noise = STREAM.normal(0, STREAM.integers(0, 30) + 0.1, (height, width, 3))
    return Image.fromarray(np.clip(opencv_linear(few, width, height) + noise, 0, 255).astype(np.uint8))


def jpeg_files(count: int):
    """JPEG files of all samplings, qualities and kinds."""
    for number in range(count):
        image = photograph(*map(int, STREAM.integers(1, 150, 2)))
        options = {"subsampling": ("4:4:4", "4:2:2", "4:2:0")[number % 3], "quality": int(STREAM.integers(1, 101))}
        options |= {"progressive": number % 2 == 1, "optimize": number % 5 == 0}
        options |= {"restart_marker_blocks": 3} if number % 7 == 0 else {}
        yield encoded(image.convert("L") if number % 11 == 0 else image, "JPEG", **options)


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.nightly)])
def test_jpeg_files_have_the_pixels_of_another_version(decoder, count):
    """Pillow has a libjpeg-turbo of its own: the accurate transform gives the same bits in all of them."""
    assert features.check_feature("libjpeg_turbo")
    for number, data in enumerate(jpeg_files(count)):
        np.testing.assert_array_equal(decoder.decode(contents(data)), pillow(data), err_msg=str(number))


KINDS = [(0, bits) for bits in (1, 2, 4, 8)] + [(3, bits) for bits in (1, 2, 4, 8)] + [(2, 8), (4, 8), (6, 8)]


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize(("kind", "bits"), KINDS)
def test_png_files_of_all_kinds(decoder, kind, bits, interlaced):
    channels = {2: 3, 4: 2, 6: 4}.get(kind, 1)
    for width, height in ((1, 1), (3, 2), (9, 8), (33, 17)):
        samples = STREAM.integers(0, 1 << bits, (height, width, channels))
        palette = chunk(b"PLTE", STREAM.integers(0, 256, 3 << bits, dtype=np.uint8).tobytes()) if kind == 3 else b""
        shades = {0: b"\0\1", 2: b"\0\1\0\2\0\3", 3: b"\0\x80"}
        transparent = chunk(b"tRNS", shades[kind]) if kind in shades and width > 3 else b""
        # A decoder that corrects levels by the file's gamma would give others.
        gamma = chunk(b"gAMA", struct.pack(">I", 100_000))
        data = png(samples, kind, bits, interlaced=interlaced, before=gamma + palette + transparent)
        np.testing.assert_array_equal(decoder.decode(contents(data)), pillow(data))


IMAGE = photograph(50, 40)
JPEG, PNG = encoded(IMAGE, "JPEG"), encoded(IMAGE, "PNG")
FRAME = JPEG.index(b"\xff\xc0")


def of_frame(offset: int, *values: int) -> bytes:
    """Return the JPEG file with other bytes in its frame."""
    return JPEG[: FRAME + offset] + bytes(values) + JPEG[FRAME + offset + len(values) :]


WRONG = {
    "the file is empty": b"",
    "not a picture that can be read": b"hello",
    "the JPEG file ends before its picture begins": JPEG[:100],
    "ends before its picture": JPEG[:3],
    "Premature end of JPEG file": JPEG[:-100],
    "damaged: Premature": encoded(IMAGE, "JPEG", progressive=True)[:-200],
    "the JPEG file is damaged": JPEG[:-2],
    "4 colours": encoded(IMAGE.convert("CMYK"), "JPEG"),
    "2 colours": of_frame(9, 2),
    "arithmetic coding": of_frame(1, 0xC9),
    "lossless or hierarchical": of_frame(1, 0xC3),
    "12 bits for a level": of_frame(4, 12),
    "no pixels: its size is 50x0": of_frame(5, 0, 0),
    "too large: 50x65535": of_frame(5, 0xFF, 0xFF),
    "too large: 32768x32768": of_frame(5, 0x80, 0, 0x80, 0),
    "the JPEG file has no picture": b"\xff\xd8\xff\xd9",
    "has no picture": JPEG[:2] + JPEG,
    "the PNG file ends before its picture": PNG[:20],
    "it ends too early": PNG[:-30],
    "ends too early": PNG[:-12],
    "the PNG file is damaged: IDAT": PNG[:60] + b"\0\0" + PNG[62:],
    "the PNG file has no header": PNG[:12] + b"JHDR" + PNG[16:],
    "16 bits for a level: save it with 8": png(STREAM.integers(0, 1 << 16, (4, 5, 3)), 2, 16),
    "16 bits": png(STREAM.integers(0, 1 << 16, (4, 5, 1)), 0, 16),
    "too large: 40000x40": PNG[:16] + struct.pack(">I", 40_000) + PNG[20:],
    "too large: 2147483647x40": PNG[:16] + b"\xff\xff\xff\xff" + PNG[20:],
    "no pixels: its size is 0x40": PNG[:16] + b"\0\0\0\0" + PNG[20:],
    "the PNG file is damaged: IHDR": PNG[:29] + b"\0\0\0\0" + PNG[33:],
    "IDAT: Missing PLTE": png(STREAM.integers(0, 2, (4, 5, 1)), 3, 1),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_wrong_with_a_file_is_said(decoder, message):
    with pytest.raises(InputError, match=message):
        decoder.decode(contents(WRONG[message]))


def test_what_is_allowed(decoder):
    """As cameras and phones write it: bytes after the picture, a rotation and a colour profile are ignored."""
    pixels = pillow(JPEG)
    exif = Image.Exif()
    exif[0x112] = 6  # to be shown turned by 90 degrees
    turned = encoded(IMAGE, "JPEG", exif=exif, icc_profile=b"profile")
    for data in (JPEG + b"more", JPEG[:-2] + b"\0\0\0" + JPEG[-2:], turned):
        np.testing.assert_array_equal(decoder.decode(contents(data)), pixels)
    np.testing.assert_array_equal(decoder.decode(contents(PNG + b"more")), pillow(PNG))
    text = chunk(b"zTXt", b"comment\0\0" + b"no zlib stream")  # which is not read
    np.testing.assert_array_equal(decoder.decode(contents(PNG[:33] + text + PNG[33:])), pillow(PNG))


def test_other_formats_are_pillows(decoder):
    data = encoded(IMAGE, "BMP")
    np.testing.assert_array_equal(decoder.decode(contents(data)), pillow(data))
    assert (format_of(contents(data)), format_of(contents(JPEG)), format_of(contents(PNG))) == ("", "jpeg", "png")
    pixels = np.asarray(IMAGE)
    assert pixels_of(pixels) is pixels


class WithoutLibraries:
    """The functions of the library of steps on a machine without libturbojpeg and libpng."""

    def __init__(self, functions):
        self._functions = functions

    def __getattr__(self, name):
        return getattr(self._functions, name)

    def pictures_decode(self, *arguments):
        code = self._functions.pictures_decode(*arguments)
        return code if code == 1 else 2


def test_without_the_libraries_pillow_decodes_what_devices_would(decoder, monkeypatch):
    monkeypatch.setattr(decoder, "_functions", WithoutLibraries(decoder._functions))
    for data in (JPEG, PNG, *jpeg_files(20)):
        np.testing.assert_array_equal(decoder.decode(contents(data)), pillow(data))
    with pytest.raises(InputError, match="4 colours"):
        decoder.decode(contents(WRONG["4 colours"]))


def test_a_damaged_file_leaves_the_decoder_as_it_was(decoder):
    for data in WRONG.values():
        with pytest.raises(InputError):
            decoder.decode(contents(data))
        np.testing.assert_array_equal(decoder.decode(contents(JPEG)), pillow(JPEG))
        np.testing.assert_array_equal(decoder.decode(contents(PNG)), pillow(PNG))
