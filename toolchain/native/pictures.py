"""The pictures module of devices, compiled for this machine: the reference of what a device makes of a picture."""

from __future__ import annotations

import ctypes
import functools
import io
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from toolchain import anchors, resources
from toolchain.errors import InputError, reason
from toolchain.native import steps
from toolchain.native.steps import Handle
from toolchain.pictures import plan as plans
from toolchain.pictures.anchors import MOST_LEVELS, MOST_SIZES
from toolchain.pictures.grids import Coding, Storage
from toolchain.pictures.plan import Plan

FORMATS = ("rgb", "bgr", "rgba", "gray", "nv12", "yuyv")
"""Formats of raw pictures, in the order of their numbers from 1."""
FILES = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}
"""How the files begin that devices decode; their numbers follow those of `FORMATS`."""
_REFUSED = 1
_PIXELS_RANK = 3
_KINDS = ("scale", "mean", "std")
_HEADS = ("none", "classes", "yolo-v5", "yolo-v8", "labels", "detr", "boxes", "grid")
_COLORS = 3
_EXTRAS = ("beam", "points", "point_numbers", "prototypes", "mask_width", "mask_height")
_BOXES = ("shares", "sigmoid", "background")


class _Operation(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("values", ctypes.c_float * 3))


class _Level(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("columns", "rows", "anchors")),
        *((name, ctypes.c_float) for name in ("step_x", "step_y")),
        ("size", (ctypes.c_float * 2) * MOST_SIZES),
    )


class _Values(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("count", ctypes.c_size_t))


class _Plan(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("width", "height", "order", "kernel", "fit", "short_side", "pad")),
        *((name, ctypes.c_int32) for name in ("channels_first", "element", "operations")),
        ("operation", _Operation * 3),
        *((name, ctypes.c_int32) for name in ("head", "softmax", "most", "classes", "candidates")),
        ("nms", ctypes.c_float),
        ("score", ctypes.c_float),
        ("blank", ctypes.c_int32),
        *((name, ctypes.c_int32) for name in (*_EXTRAS, "form", *_BOXES, "coding", "storage")),
        ("variance", ctypes.c_float * 4),
        ("offset", ctypes.c_float),
        ("table", ctypes.c_int32),
        ("levels", ctypes.c_int32),
        ("level", _Level * MOST_LEVELS),
    )


class _Picture(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("format", "width", "height")),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("stride", ctypes.c_size_t),
        ("chroma", ctypes.c_void_p),
        ("chroma_bytes", ctypes.c_size_t),
        ("chroma_stride", ctypes.c_size_t),
    )


@dataclass(frozen=True)
class Raw:
    """A raw picture: `data` has the bytes of its rows, as `edge_image` in the C library."""

    format: str
    width: int
    height: int
    data: NDArray[np.uint8]
    stride: int = 0
    chroma_stride: int = 0

    @classmethod
    def of_rgb(cls, pixels: NDArray[np.uint8]) -> Raw:
        """Return a picture of (height, width, 3) pixels."""
        height, width, _ = pixels.shape
        return cls("rgb", width, height, np.ascontiguousarray(pixels).reshape(-1))


class Computer:
    """Computes the steps of a plan on this machine; not for use by two threads at once."""

    def __init__(self, plan: Plan, progress: Callable[[str], None] | None = None) -> None:
        self._plan, self._handle = plan, Handle("pictures", resources.manual("pictures"), progress)
        table = np.frombuffer(bytes.fromhex(plan.table), "<f4")
        self._handle.make("open", _plan_struct(plan), steps.address(table), ctypes.c_size_t(table.size))

    def prepare(self, raw: Raw) -> NDArray[Any]:
        """Return the model's input for a picture.

        Raises:
            InputError: The numbers of the picture do not agree, or it does not fit the plan.
        """
        plan = self._plan
        shape = (plan.channels, plan.height, plan.width)
        if plan.layout == "nhwc":
            shape = (plan.height, plan.width, plan.channels)
        result = np.empty((1, *shape), plan.dtype)
        picture = _Picture(
            FORMATS.index(raw.format) + 1, raw.width, raw.height, raw.data.ctypes.data, raw.data.nbytes, raw.stride
        )
        picture.chroma_stride = raw.chroma_stride
        self._handle.call("prepare", ctypes.byref(picture), steps.address(result), ctypes.c_size_t(result.nbytes))
        return result

    def find(self, width: int, height: int, outputs: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return the objects that the model's outputs have for a picture of this size, as an array of `OBJECT`.

        Raises:
            InputError: The output that is read has another size.
        """
        boxes = np.empty(0, np.float32)
        if self._plan.box_output >= 0:
            boxes = np.ascontiguousarray(outputs[self._plan.box_output], np.float32)
        own = [np.ascontiguousarray(outputs[number], np.float32) for number in self._plan.level_outputs]
        levels = (_Values * MOST_LEVELS)(*(_Values(level.ctypes.data, level.size) for level in own))
        place = levels, steps.address(boxes), ctypes.c_size_t(boxes.size)
        return self._handle.find(width, height, *place, output=outputs[self._plan.output])

    def points(self) -> NDArray[np.float32]:
        """Return the key points of the objects that were found last, (objects, points, 3): x, y and their score."""
        points, count = ctypes.c_void_p(), ctypes.c_size_t()
        self._handle.read("points", ctypes.byref(points), ctypes.byref(count))
        values = np.frombuffer(ctypes.string_at(points, count.value * 12) if count.value else b"", np.float32)
        return values.reshape(-1, max(self._plan.points, 1), 3)

    def mask(self, number: int, prototypes: NDArray[np.float32]) -> Mask:
        """Return the mask of an object that was found last, of the prototypes of the same run.

        Raises:
            InputError: The prototypes have another size.
        """
        values, area = np.ascontiguousarray(prototypes, np.float32), _Area()
        given = ctypes.c_size_t(number), steps.address(values), ctypes.c_size_t(values.size), ctypes.byref(area)
        self._handle.call("mask", *given, None)
        pixels = np.zeros((area.height, area.width), np.uint8)
        self._handle.call("mask", *given, steps.address(pixels))
        return Mask(area.left, area.top, pixels)


class _Area(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int32) for name in ("left", "top", "width", "height"))


@dataclass(frozen=True)
class Mask:
    """The pixels of an object: `pixels` is (height, width) of 0 and 1, and lies at `left`, `top` in the picture."""

    left: int
    top: int
    pixels: NDArray[np.uint8]


class Decoder:
    """Decodes files of pictures to their pixels: JPEG and PNG by the code of devices, and others by Pillow."""

    def __init__(self, progress: Callable[[str], None] | None = None) -> None:
        self._functions, self._handle = steps.library(progress), ctypes.c_void_p()
        self._lock = threading.Lock()

    def __del__(self) -> None:
        self._functions.pictures_forget(self._handle)

    def decode(self, contents: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the RGB pixels of a file, (height, width, 3).

        Without libturbojpeg or libpng on this machine, Pillow decodes what the code of devices accepts by its header.

        Raises:
            InputError: It is damaged, of an unknown format, or of a kind that devices refuse.
        """
        if not contents.size:
            raise InputError("the file is empty", hint="pass a JPEG or PNG file")
        name = format_of(contents)
        found = self._by_device_code(_number(name), contents) if name else None
        return _by_pillow(contents) if found is None else found

    def has(self, name: str) -> bool:
        """Whether this machine has the library for a format of `FILES`."""
        return bool(self._functions.pictures_has(ctypes.byref(self._handle), _number(name)))

    def _by_device_code(self, number: int, contents: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
        """Return None if this machine has no library for the format."""
        file, pixels = _Picture(number, 0, 0, contents.ctypes.data, contents.nbytes), _Picture()
        fault = ctypes.create_string_buffer(steps.REASON_BYTES)
        with self._lock:
            code = self._functions.pictures_decode(
                ctypes.byref(self._handle), ctypes.byref(file), ctypes.byref(pixels), fault
            )
            if code == _REFUSED:
                text = fault.value.decode(errors="replace")
                raise InputError(text, hint=f"{resources.manual('pictures')} describes the files that devices decode")
            if code:
                return None
            copy = ctypes.string_at(pixels.data, pixels.bytes)
        return np.frombuffer(copy, np.uint8).reshape(pixels.height, pixels.width, _COLORS)


def _number(name: str) -> int:
    return len(FORMATS) + 1 + list(FILES).index(name)


def format_of(contents: NDArray[np.uint8]) -> str:
    """Return which of `FILES` the bytes of a file are; empty if none."""
    begin = contents[:8].tobytes() if contents.ndim == 1 else b""  # pixels are no file
    return next((name for name, start in FILES.items() if begin.startswith(start)), "")


def _by_pillow(contents: NDArray[np.uint8]) -> NDArray[np.uint8]:
    try:
        return np.asarray(Image.open(io.BytesIO(contents.tobytes())).convert("RGB"))
    except Exception as fault:  # its decoders raise exceptions of any class
        raise InputError("it is not a picture that can be read", details=reason(fault)) from fault


@functools.cache
def decoder(progress: Callable[[str], None] | None = None) -> Decoder:
    return Decoder(progress)


def pixels_of(raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the RGB pixels of a picture: pixels as they are, or the bytes of a file.

    Raises:
        InputError: As `Decoder.decode`.
    """
    return raw if raw.ndim == _PIXELS_RANK else decoder().decode(raw)


def _plan_struct(plan: Plan) -> _Plan:
    result = _Plan(
        plan.width,
        plan.height,
        get_args(plans.Order).index(plan.order),
        get_args(plans.Kernel).index(plan.kernel),
        get_args(plans.Fit).index(plan.fit),
        plan.short_side,
        plan.pad,
        int(plan.layout == "nchw"),
        get_args(plans.Element).index(plan.dtype),
        len(plan.operations),
    )
    for number, operation in enumerate(plan.operations):
        result.operation[number] = _Operation(_KINDS.index(operation.kind), operation.values)
    result.head, result.softmax = _HEADS.index(plan.head), int(plan.softmax)
    result.most, result.classes, result.candidates = plan.most, plan.classes, plan.candidates
    result.nms, result.score, result.blank = plan.nms, plan.score, plan.blank
    result.form = get_args(plans.Form).index(plan.form)
    for name in (*_EXTRAS, *_BOXES):
        setattr(result, name, int(getattr(plan, name)))
    _fill_anchors(result, plan)
    return result


def _fill_anchors(result: _Plan, plan: Plan) -> None:
    result.coding = get_args(Coding).index(plan.coding)
    result.storage = get_args(Storage).index(plan.storage)
    result.variance[:], result.offset = plan.variances, plan.offset
    result.table, result.levels = anchors.count(plan.table), len(plan.levels)
    for number, level in enumerate(plan.levels):
        own = result.level[number]
        own.columns, own.rows, own.step_x, own.step_y = level.columns, level.rows, level.step_x, level.step_y
        own.anchors = len(level.sizes)
        for place, size in enumerate(level.sizes):
            own.size[place][:] = size


def synthetic(plan: Plan, seed: int) -> NDArray[np.uint8]:
    """Draw a picture, (height, width, 3): smooth shapes with noise, of an odd size other than the model's."""
    width, height = (plan.width, plan.height) if plan.kernel == "none" else (plan.width + 37, plan.height + 11)
    stream = np.random.default_rng([seed, width, height])
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = stream.uniform(0.5, 4.0, (_COLORS, 2))
    smooth = [np.sin(x * a / width * 6 + y * b / height * 6) for a, b in waves]
    pixels = 128 + 90 * np.stack(smooth, axis=-1) + stream.normal(0, 16, (height, width, _COLORS))
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
