"""Convolutions whose channels are last, and whose weights are transposed when the model is built."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, te, tirx, topi
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.graph.values import shape_of
from toolchain.backends.mali import winograd
from toolchain.backends.mali.layout.writer import OP, RANKS, Replacement, Writer, constant, numbers, transposed_shape
from toolchain.backends.mali.rewrite import largest_divisor, launch, write_kernel

_LANES = 4


def conv(writer: Writer, variable: Any, call: Any) -> Replacement | None:
    """Convolve an image with weights that are known."""
    data, weight = call.args
    rank, attributes = len(shape_of(variable.ty) or ()), call.attrs
    spatial = RANKS[rank]
    layouts = (str(attributes.data_layout), str(attributes.kernel_layout), str(attributes.out_layout))
    if layouts != (f"NC{spatial}", f"OI{spatial}", f"NC{spatial}") or not isinstance(weight, tvm.ir.GenericConst):
        return None
    array = weight.value.numpy()
    if array.shape[0] % _LANES and writer.twin(data) is None:
        return None
    transposed = constant(array.transpose(*range(2, rank), 1, 0), weight)
    settings = {name: numbers(getattr(attributes, name)) for name in ("strides", "padding", "dilation")} | {
        "groups": int(attributes.groups),
        "out_dtype": str(attributes.out_dtype or variable.ty.dtype),
    }
    is_image = rank == 4 and array.shape[1] <= _LANES and settings["groups"] == 1  # noqa: PLR2004 - height and width
    if is_image and writer.twin(data) is None and not writer.half:
        if is_padded(array.shape[1]) and str(variable.ty.dtype) == "float32":
            return _padded_conv(writer, variable, call, settings)
        call = writer.builder.call_te(
            _first_conv, writer.plain(data), transposed, settings, primfunc_name_hint=f"conv{rank - 2}d"
        )
        return Replacement(call)
    if (tiles := _tiling(writer, variable, call, settings)) is not None:
        bind = functools.partial(writer.like, variable)
        return Replacement(winograd.convolve(writer.builder, bind, writer.last(data), array, tiles))
    function = getattr(OP.nn, f"conv{rank - 2}d")
    arrangement = {"data_layout": f"N{spatial}C", "kernel_layout": f"{spatial}IO", "out_layout": f"N{spatial}C"}
    return Replacement(function(writer.last(data), transposed, **settings, **arrangement))


def _padded_conv(writer: Writer, variable: Any, call: Any, settings: Mapping[str, Any]) -> Replacement:
    """Convolve an image of three or four channels, which a kernel of its own pads to vectors."""
    data, weight = call.args
    image, padding = shape_of(data.ty) or (), settings["padding"]
    shape = padded_shape(image, padding)
    kernel = writer.builder.add_func(first_image_kernel(image, padding), "first_image")
    value = relax.call_tir(kernel, [writer.plain(data)], relax.TensorType(shape, "float32"))
    padded = writer.like(variable, shape, value, is_step=True)
    array = constant(padded_weights(weight.value.numpy().transpose(2, 3, 1, 0)), weight)
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_layout": "NHWC"}
    return Replacement(OP.nn.conv2d(padded, array, **{**settings, "padding": [0, 0, 0, 0]}, **layouts))


def _tiling(writer: Writer, variable: Any, call: Any, settings: Mapping[str, Any]) -> winograd.Tiling | None:
    """Return the tiles that Winograd's algorithm computes a convolution by; None if it is computed as it is."""
    data, weight = call.args
    image, (outputs, _, *window) = shape_of(data.ty), weight.value.numpy().shape
    plain = settings["strides"] == settings["dilation"] == [1, 1] and settings["groups"] == 1 and window == [3, 3]
    kinds = {str(expression.ty.dtype) for expression in (data, weight, variable)} | {settings["out_dtype"]}
    if not writer.tiled or not plain or image is None or kinds != {"float32"}:
        return None
    batch, height, width, channels = transposed_shape(image)
    top, left, below, right = settings["padding"]
    return winograd.choose_tiling((batch, height, width, channels), outputs, (top, left, below, right))


def _first_conv(data: te.Tensor, weight: te.Tensor, settings: Mapping[str, Any]) -> te.Tensor:
    """Convolve an image in NCHW; of so few channels, it is not worth a kernel of its own that transposes them."""
    transposed = te.compute(
        transposed_shape(data.shape), lambda n, h, w, c: data[n, c, h, w], name="transposed", tag=topi.tag.INJECTIVE
    )
    return topi.nn.conv(
        transposed,
        weight,
        settings["strides"],
        settings["padding"],
        settings["dilation"],
        settings["groups"],
        "NHWC",
        "HWIO",
        settings["out_dtype"],
    )


# --- the first image -------------------------------------------------------------------------------------------------

# Three channels are no vector. Read one by one they are three loads a pixel, and a convolution that pads asks for each
# whether it is within. So one kernel transposes, pads, and adds a channel of zeros; the convolution then reads a
# vector a pixel, a few pixels one after the other.

_GROUP = 64  # most work-items of a work-group


def is_padded(channels: int) -> bool:
    """Whether images of so many channels are padded to four."""
    return _LANES - 1 <= channels <= _LANES


def padded_shape(image: Sequence[int], padding: Sequence[int]) -> tuple[int, int, int, int]:
    """Return the shape of what the kernel writes: [n, h, w, 4] with the padding."""
    batch, _, height, width = image
    top, left, below, right = padding
    return batch, height + top + below, width + left + right, _LANES


def first_image_kernel(image: Sequence[int], padding: Sequence[int]) -> tirx.PrimFunc:
    """Write the kernel.

    Args:
        image: Shape of the image [n, c, h, w]; c is three or four.
        padding: Zeros above, to the left, below, to the right.
    """
    padded = padded_shape(image, padding)

    def body(source: Any, result: Any) -> None:
        batch, height, width, _ = padded
        wide = largest_divisor(width, _GROUP)
        with launch(group_z=batch, group_y=height, group_x=width // wide, item_x=wide) as (n, row, x, item):
            column = x * wide + item
            pixel, lanes = T.alloc_buffer((_LANES,), "float32", scope="local"), tirx.Ramp(0, 1, _LANES)
            for channel, value in enumerate(_pixel(source, n, row - padding[0], column - padding[1])):
                T.buffer_store(pixel, value, [channel])
            T.buffer_store(result, pixel[lanes], [n, row, column, lanes])

    return write_kernel("first_image", {"image": image, "padded": padded}, body)


def _pixel(image: Any, number: Any, row: Any, column: Any) -> list[Any]:
    """Return the channels of a pixel; outside of the image, and beyond its channels, there are zeros."""
    _, channels, height, width = (int(size) for size in image.shape)
    zero = tirx.const(0.0, "float32")
    inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
    read = [tirx.if_then_else(inside, image[number, channel, row, column], zero) for channel in range(channels)]
    return read + [zero] * (_LANES - channels)


def padded_weights(array: NDArray[Any]) -> NDArray[Any]:
    """Return weights [h, w, in, out] with zeros for the channels that are added."""
    return np.pad(array, [(0, 0), (0, 0), (0, _LANES - array.shape[2]), (0, 0)])
