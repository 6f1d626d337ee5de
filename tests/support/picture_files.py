"""Files of pictures for tests: JPEG by Pillow, and PNG of each kind, which Pillow does not write."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image, ImageFile

_BUFFER = 1 << 22  # bytes: Pillow's encoder fails when a small optimized file does not fit into its own

# First row and column, and their steps, of the seven passes of an interlaced PNG.
PASSES = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:  # noqa: A002 - Pillow's word
    stream = io.BytesIO()
    with mock.patch.object(ImageFile, "MAXBLOCK", _BUFFER):
        image.save(stream, format, **options)
    return stream.getvalue()


def pillow(contents: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(contents)).convert("RGB"))


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(samples: np.ndarray[Any, Any], kind: int, bits: int, *, interlaced: bool = False, before: bytes = b"") -> bytes:
    """Write a PNG file of (height, width, channels) samples; `kind` is its colour type, `before` more chunks."""
    height, width, _ = samples.shape
    parts = [samples[top::down, left::right] for top, left, down, right in PASSES] if interlaced else [samples]
    rows = b"".join(b"\0" + _packed(row, bits) for part in parts if part.shape[1] for row in part)
    header = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, int(interlaced))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + before
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def _packed(row: np.ndarray[Any, Any], bits: int) -> bytes:
    if bits == 16:
        return row.astype(">u2").tobytes()
    values = row.reshape(-1).astype(np.uint8)
    digits = np.unpackbits(values[:, None], axis=1)[:, 8 - bits :]
    return np.packbits(digits.reshape(-1)).tobytes()
