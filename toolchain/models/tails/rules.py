"""How operators treat tensors whose size depends on the data: valid elements must not depend on what lies behind them.

An operator that computes each result by itself stays as it is. Otherwise what lies behind the results is replaced by
something neutral: the lowest number for a maximum, 0 for a sum, an index of 0. Other operators are refused.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from toolchain.models import protos
from toolchain.models.tails import sizes
from toolchain.models.tails.chosen import compress, concat, gather, gather_elements, gather_nd, non_zero, suppress
from toolchain.models.tails.common import first_axis, keep_each, other_axis
from toolchain.models.tails.graph import Rule, Tail, attribute_values
from toolchain.models.tails.shapes import (
    constant_of_shape,
    expand,
    flatten,
    pad,
    range_of,
    reshape,
    shape_or_size,
    slice_of,
)
from toolchain.models.tails.single import (
    EACH,
    arg_extreme,
    product,
    quotient,
    reduce,
    squeeze,
    top_k,
    transpose,
    unsqueeze,
)


# torchvision writes a branch for the case without results; the other branch has none in that case either.
def _inline_branch(node: onnx.NodeProto, tail: Tail) -> None:
    condition = tail.tables[node.input[0]]
    truths = condition.values.reshape(-1)
    # The branch of the largest count; for other counts it must have the same results, or none.
    is_true = bool(truths[-1])
    other = protos.branch_body(node, condition=not is_true)
    branch = protos.prefixed_branch(protos.branch_body(node, condition=is_true), tail.name_for("branch"))
    tail.hold(branch.constants)
    tail.walk(branch.nodes, RULES)
    for index, output in enumerate(branch.outputs):
        result = tail.resolved(output)
        for count in np.flatnonzero(truths != is_true):
            extent = tail.extents.get(result)
            if extent is None or condition.root is None or not tail.is_empty(extent, condition.root, int(count)):
                raise ValueError("its branches have results of different kinds")
        if not _is_empty_output(other, index) and (truths != is_true).any():
            raise ValueError("its other branch has results of its own")
        tail.rename([node.output[index]], [result])


def _is_empty_output(body: onnx.GraphProto, index: int) -> bool:
    """Whether an output of a branch is a constant without elements."""
    tables = {tensor.name: sizes.fixed(numpy_helper.to_array(tensor)) for tensor in body.initializer}
    for node in body.node:
        values = attribute_values(node)
        try:
            if node.op_type == "Constant":
                tables[node.output[0]] = sizes.fixed(values["value"])
            else:
                tables[node.output[0]] = sizes.compute(node.op_type, values, [tables[name] for name in node.input])
        except (LookupError, ValueError):
            continue
    table = tables.get(body.output[index].name)
    return table is not None and table.values.size == 0


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        (
            *("Cast", "Identity", "Clip", "LeakyRelu", "Elu", "HardSigmoid", "Abs", "Neg", "Not", "Sign", "Exp", "Log"),
            *("Sqrt", "Relu", "Sigmoid", "Tanh", "Floor", "Ceil", "Round", "Reciprocal", "Sin", "Cos", "Atan", "IsNaN"),
        ),
        keep_each(first_axis),
    ),
    **dict.fromkeys(
        (
            *("Add", "Sub", "Mul", "Pow", "Min", "Max", "Where", "And", "Or", "Xor"),
            *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
        ),
        EACH,
    ),
    **dict.fromkeys(("Div", "Mod"), quotient),
    **dict.fromkeys(
        ("ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare"),
        reduce,
    ),
    **dict.fromkeys(("Softmax", "LogSoftmax"), keep_each(other_axis(-1))),
    **dict.fromkeys(("ArgMax", "ArgMin"), arg_extreme),
    **dict.fromkeys(("MatMul", "Gemm"), keep_each(product)),
    **dict.fromkeys(("Shape", "Size"), shape_or_size),
    "Compress": compress,
    "Concat": concat,
    "ConstantOfShape": constant_of_shape,
    "Expand": expand,
    "Flatten": flatten,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "If": _inline_branch,
    "NonMaxSuppression": suppress,
    "NonZero": non_zero,
    "Pad": pad,
    "Range": range_of,
    "Reshape": reshape,
    "Slice": slice_of,
    "Split": keep_each(other_axis(0)),
    "Squeeze": keep_each(squeeze),
    "TopK": top_k,
    "Transpose": keep_each(transpose),
    "Unsqueeze": keep_each(unsqueeze),
}
