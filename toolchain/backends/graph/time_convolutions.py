"""Convolutions over time as matrix products: these have kernels for any number of rows.

What a step sees lies in one row of the product: the steps before it and behind it, one beside the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

_CONVOLUTION = "relax.nn.conv2d"


def as_products(module: tvm.IRModule) -> tvm.IRModule | None:
    """Return a network with products in the place of convolutions over time that make one step of each.

    Returns:
        The network; None if it has no such convolution.
    """
    rewriter = _Rewriter()
    main = rewriter.visit_expr(module["main"])
    if not rewriter.count:
        return None
    changed = tvm.IRModule({**dict(module.functions_items()), module.get_global_var("main"): main})
    normalized: tvm.IRModule = relax.transform.Normalize()(changed)
    return normalized


@dataclass(frozen=True)
class _TimeConvolution:
    """A convolution [batch, channels, 1, steps] with weights [outputs, inputs, 1, taps].

    Attributes:
        outputs: Channels of the result.
        inputs: Channels that an output sees.
        taps: Steps that a step sees.
        steps: Steps of the result.
        apart: Steps from one of them to the next.
        padding: Steps of zeros before and behind.
        by_channel: Whether each channel sees itself alone.
    """

    outputs: int
    inputs: int
    taps: int
    steps: int
    apart: int
    padding: tuple[int, int]
    by_channel: bool

    @classmethod
    def of(cls, call: Any) -> _TimeConvolution | None:
        if not isinstance(call, relax.Call) or getattr(call.op, "name", "") != _CONVOLUTION:
            return None
        attributes = call.attrs
        _, channels, height, steps = (int(extent) for extent in call.args[0].ty.shape)
        outputs, inputs, *kernel = (int(extent) for extent in call.args[1].ty.shape)
        top, left, bottom, right = map(int, attributes.padding)
        by_channel = attributes.groups == channels == outputs and inputs == 1
        is_plain = attributes.data_layout == "NCHW" and attributes.kernel_layout == "OIHW"
        is_over_time = height == kernel[0] == 1 and steps > 1 and not top + bottom
        if not (is_plain and is_over_time and (by_channel or attributes.groups == 1)):
            return None
        if {int(stride) for stride in attributes.strides} != {1}:
            return None
        made = int(call.ty.shape[3])
        return cls(outputs, inputs, kernel[1], made, int(attributes.dilation[1]), (left, right), by_channel)


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(None)
        self.count = 0

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        convolution = _TimeConvolution.of(op)
        if convolution is None:
            return call
        self.count += 1
        emit = self.builder_.emit
        rows = emit(relax.op.permute_dims(call.args[0], [0, 2, 3, 1]))
        if any(convolution.padding):
            rows = emit(relax.op.nn.pad(rows, [0, 0, 0, 0, *convolution.padding, 0, 0]))
        begins = [tap * convolution.apart for tap in range(convolution.taps)]
        seen = [rows]
        if convolution.taps > 1:
            seen = [emit(relax.op.strided_slice(rows, [2], [at], [at + convolution.steps])) for at in begins]
        compute = self._by_channel if convolution.by_channel else self._product
        return relax.op.permute_dims(emit(compute(convolution, seen, call.args[1])), [0, 3, 1, 2])

    def _product(self, convolution: _TimeConvolution, seen: list[relax.Expr], weights: relax.Expr) -> relax.Expr:
        emit = self.builder_.emit
        by_tap = emit(relax.op.permute_dims(weights, [3, 1, 2, 0]))
        matrix = emit(relax.op.reshape(by_tap, (convolution.taps * convolution.inputs, convolution.outputs)))
        return relax.op.matmul(emit(relax.op.concat(seen, 3)) if len(seen) > 1 else seen[0], matrix)

    def _by_channel(self, convolution: _TimeConvolution, seen: list[relax.Expr], weights: relax.Expr) -> relax.Expr:
        emit = self.builder_.emit
        by_tap = emit(
            relax.op.permute_dims(emit(relax.op.reshape(weights, (convolution.outputs, convolution.taps))), [1, 0])
        )
        total = None
        for tap, rows in enumerate(seen):
            factors = emit(relax.op.strided_slice(by_tap, [0], [tap], [tap + 1]))
            scaled = emit(relax.op.multiply(rows, factors))
            total = scaled if total is None else emit(relax.op.add(total, scaled))
        return total
