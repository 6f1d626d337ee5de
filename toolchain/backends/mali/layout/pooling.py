"""Pooling, and averages over neighbouring channels, which local response normalisation has."""

from __future__ import annotations

from typing import Any

from toolchain.backends.graph.values import name_of, shape_of
from toolchain.backends.mali.layout.axes import OP, RANKS, numbers, transposed_shape
from toolchain.backends.mali.layout.writer import Replacement, Writer


def pool(writer: Writer, variable: Any, call: Any) -> Replacement | None:
    """Pool an image whose channels are last already."""
    (data,), attributes = call.args, call.attrs
    if data in writer.state.stretched:
        _across_channels(writer, variable, call)
        return None
    spatial = RANKS[len(shape_of(variable.ty) or ())]
    if writer.twin(data) is None or {str(attributes.layout), str(attributes.out_layout)} != {f"NC{spatial}"}:
        return None
    function = getattr(OP.nn, name_of(call).removeprefix("nn."))
    value = function(
        writer.twin(data),
        numbers(attributes.pool_size),
        strides=numbers(attributes.strides),
        padding=numbers(attributes.padding),
        dilation=numbers(attributes.dilation),
        ceil_mode=bool(attributes.ceil_mode),
        count_include_pad=bool(attributes.count_include_pad),
        layout=f"N{spatial}C",
        out_layout=f"N{spatial}C",
    )
    return Replacement(value)


def _across_channels(writer: Writer, variable: Any, call: Any) -> None:
    """Know an average over neighbouring channels, as local response normalisation has it: NHWC pooled as if NCHW."""
    attributes, source = call.attrs, writer.state.stretched[call.args[0]]
    size, *others = numbers(attributes.pool_size)
    before, *rest = numbers(attributes.padding)
    after = rest.pop(len(others))
    plain = {*others, *numbers(attributes.strides), *numbers(attributes.dilation)} == {1} and not any(rest)
    if not plain or len(others) != 2 or str(attributes.layout) != "NCDHW":  # noqa: PLR2004 - height and width
        return
    padded = bool(attributes.count_include_pad)
    value, padding = writer.twin(source), (0, before, 0, after)
    if writer.half and padded and source in writer.state.squared:
        # Half precision ends at the square of 255: TVM's pass keeps what comes after padding in single.
        wide = writer.twin(writer.state.squared[source])
        shape = [*transposed_shape(shape_of(source.ty) or ())[:-1], int(wide.ty.shape.values[-1]) + before + after]
        wide = writer.like(source, shape, OP.nn.pad(wide, [0] * 6 + [before, after], "constant", 0.0))
        value, padding = writer.like(source, shape, OP.multiply(wide, wide)), (0, 0, 0, 0)
    value = OP.nn.avg_pool2d(value, (1, size), padding=padding, count_include_pad=padded, layout="NCHW")
    # A squeeze reads this; other operations read the original binding.
    writer.state.pooled[variable] = writer.twin_of(source, value)


def adaptive_pool(writer: Writer, variable: Any, call: Any) -> Replacement | None:
    """Pool an image whose channels are last already into so many pixels."""
    (data,), attributes = call.args, call.attrs
    spatial = RANKS[len(shape_of(variable.ty) or ())]
    if writer.twin(data) is None or {str(attributes.layout), str(attributes.out_layout)} != {f"NC{spatial}"}:
        return None
    function = getattr(OP.nn, name_of(call).removeprefix("nn."))
    size = (shape_of(variable.ty) or ())[2:]
    return Replacement(function(writer.twin(data), output_size=size, layout=f"N{spatial}C", out_layout=f"N{spatial}C"))
