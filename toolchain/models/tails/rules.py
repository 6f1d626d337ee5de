"""How operators treat tensors whose size depends on the data: what counts must not depend on what lies behind it.

An operator that computes each result by itself stays as it is. Elsewhere what lies behind the results is replaced by
what does not change the result: the lowest number for a maximum, 0 for a sum, an index of 0. What has no such form is
refused.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from toolchain.models import subgraphs
from toolchain.models.tails import sizes
from toolchain.models.tails.chosen import compress, concat, gather, gather_elements, gather_nd, non_zero, suppression
from toolchain.models.tails.common import first_axis, followed, other_axis
from toolchain.models.tails.graph import Rule, Tail, attributes
from toolchain.models.tails.shapes import constant_of_shape, expand, flatten, padded, range_of, reshape, shape, slice_of
from toolchain.models.tails.single import (
    EACH,
    extreme,
    quotient,
    reduced,
    row_of_product,
    squeeze,
    top_k,
    transpose,
    unsqueeze,
)


def _branch(node: onnx.NodeProto, tail: Tail) -> None:
    """A branch for the case that there are no results, as torchvision has it: the other one has none then, either."""
    condition = tail.tables[node.input[0]]
    truths = condition.values.reshape(-1)
    taken = bool(truths[-1])
    other = subgraphs.branch_body(node, condition=not taken)
    branch = subgraphs.prefixed_branch(subgraphs.branch_body(node, condition=taken), tail.name_for("branch"))
    tail.hold(branch.constants)
    tail.walk(branch.nodes, RULES)
    for index, output in enumerate(branch.outputs):
        result = tail.resolved(output)
        for count in np.flatnonzero(truths != taken):
            extent = tail.extents.get(result)
            if extent is None or condition.root is None or not tail.is_empty(extent, condition.root, int(count)):
                raise ValueError("its branches have results of different kinds")
        if not _is_empty(other, index) and (truths != taken).any():
            raise ValueError("its other branch has results of its own")
        tail.rename([node.output[index]], [result])


def _is_empty(body: onnx.GraphProto, index: int) -> bool:
    """Whether an output of a branch is a constant without elements."""
    known = {tensor.name: sizes.fixed(numpy_helper.to_array(tensor)) for tensor in body.initializer}
    for node in body.node:
        given = attributes(node)
        try:
            if node.op_type == "Constant":
                known[node.output[0]] = sizes.fixed(given["value"])
            else:
                known[node.output[0]] = sizes.computed(node.op_type, given, [known[name] for name in node.input])
        except (LookupError, ValueError):
            continue
    table = known.get(body.output[index].name)
    return table is not None and table.values.size == 0


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        (
            *("Cast", "Identity", "Clip", "LeakyRelu", "Elu", "HardSigmoid", "Abs", "Neg", "Not", "Sign", "Exp", "Log"),
            *("Sqrt", "Relu", "Sigmoid", "Tanh", "Floor", "Ceil", "Round", "Reciprocal", "Sin", "Cos", "Atan", "IsNaN"),
        ),
        followed(first_axis),
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
        reduced,
    ),
    **dict.fromkeys(("Softmax", "LogSoftmax"), followed(other_axis(-1))),
    **dict.fromkeys(("ArgMax", "ArgMin"), extreme),
    **dict.fromkeys(("MatMul", "Gemm"), followed(row_of_product)),
    **dict.fromkeys(("Shape", "Size"), shape),
    "Compress": compress,
    "Concat": concat,
    "ConstantOfShape": constant_of_shape,
    "Expand": expand,
    "Flatten": flatten,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "If": _branch,
    "NonMaxSuppression": suppression,
    "NonZero": non_zero,
    "Pad": padded,
    "Range": range_of,
    "Reshape": reshape,
    "Slice": slice_of,
    "Split": followed(other_axis(0)),
    "Squeeze": followed(squeeze),
    "TopK": top_k,
    "Transpose": followed(transpose),
    "Unsqueeze": followed(unsqueeze),
}
