"""Attributes whose values the standard lists: other values are refused by name, before anything is compiled.

Attributes that our converters check are not included.
"""

from __future__ import annotations

import onnx

from toolchain.errors import InputError, did_you_mean
from toolchain.models import protos

_REDUCTION = ("none", "add", "mul", "max", "min")
_VALUES: dict[tuple[str, str], tuple[str, ...]] = {
    **{(operator, "reduction"): _REDUCTION for operator in ("ScatterElements", "ScatterND")},
    ("BitShift", "direction"): ("LEFT", "RIGHT"),
    ("DepthToSpace", "mode"): ("DCR", "CRD"),
    ("Gelu", "approximate"): ("none", "tanh"),
    ("GridSample", "mode"): ("linear", "nearest", "cubic", "bilinear", "bicubic"),
    ("GridSample", "padding_mode"): ("zeros", "border", "reflection"),
    ("Pad", "mode"): ("constant", "reflect", "edge", "wrap"),
    ("Resize", "mode"): ("nearest", "linear", "cubic"),
    ("Resize", "nearest_mode"): ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    ("Resize", "keep_aspect_ratio_policy"): ("stretch", "not_larger", "not_smaller"),
    ("RoiAlign", "mode"): ("avg", "max"),
    ("RoiAlign", "coordinate_transformation_mode"): ("half_pixel", "output_half_pixel"),
    ("Upsample", "mode"): ("nearest", "linear", "bilinear"),
}

_NUMBERS: dict[tuple[str, str], tuple[int, ...]] = {
    ("ConcatFromSequence", "new_axis"): (0, 1),
    ("GRU", "layout"): (0, 1),
    ("LSTM", "layout"): (0, 1),
    ("RNN", "layout"): (0, 1),
}


def check(proto: onnx.ModelProto) -> None:
    """Refuse a model with a value that the standard does not define; the error names the node."""
    for node in protos.walk_nodes(proto.graph.node):
        # Other domains define attributes of the same names with other values.
        for attribute in node.attribute if not node.domain else ():
            key = (node.op_type, attribute.name)
            value: str | int
            allowed: tuple[str, ...] | tuple[int, ...]
            if attribute.type == onnx.AttributeProto.STRING:
                value, allowed = attribute.s.decode(errors="replace"), _VALUES.get(key, ())
            else:
                value, allowed = attribute.i, _NUMBERS.get(key, ())
            if allowed and value not in allowed:
                choices = [str(choice) for choice in allowed]
                raise InputError(
                    f"{node.op_type} node {node.name or node.output[0]!r} has {attribute.name}={value!r}",
                    details="the standard defines: " + ", ".join(choices),
                    hint=did_you_mean(str(value), choices) or "export the model again with one of these values",
                )
