"""Convolutions whose channels are last, and whose weights are transposed when the model is built."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax, te, topi

from toolchain.backends.graph.values import shape_of
from toolchain.backends.mali import winograd
from toolchain.backends.mali.layout import first_image
from toolchain.backends.mali.layout.axes import OP, RANKS, constant, numbers, transposed_shape
from toolchain.backends.mali.layout.writer import Replacement, Writer

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
        if first_image.suits(array.shape[1]) and str(variable.ty.dtype) == "float32":
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
    shape = first_image.shape(image, padding)
    kernel = writer.builder.add_func(first_image.kernel(image, padding), "first_image")
    value = relax.call_tir(kernel, [writer.plain(data)], relax.TensorType(shape, "float32"))
    padded = writer.like(variable, shape, value, is_step=True)
    array = constant(first_image.weights(weight.value.numpy().transpose(2, 3, 1, 0)), weight)
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
