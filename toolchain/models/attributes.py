"""Attributes whose values the standard lists: another value is refused by name, before anything is compiled.

Those that our converters check themselves are not among them.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from toolchain.errors import InputError, did_you_mean

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


def check(proto: onnx.ModelProto) -> None:
    """Refuse a model with a value that the standard does not define.

    Raises:
        InputError: A node has one.
    """
    for node in _nodes(proto.graph):
        for attribute in node.attribute:
            allowed = _VALUES.get((node.op_type, attribute.name)) if not node.domain else None
            value = attribute.s.decode(errors="replace")
            if allowed and attribute.type == onnx.AttributeProto.STRING and value not in allowed:
                raise InputError(
                    f"{node.op_type} node {node.name or node.output[0]!r} has {attribute.name}={value!r}",
                    details="the standard defines: " + ", ".join(allowed),
                    hint=did_you_mean(value, allowed) or "export the model again with one of these values",
                )


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from _nodes(body)
