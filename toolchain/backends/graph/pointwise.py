"""Convolutions over time that see one step at a time, as matrix products: these have kernels for any number of rows."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

_CONVOLUTION = "relax.nn.conv2d"


def as_products(module: tvm.IRModule) -> tvm.IRModule | None:
    """Return a network with products in the place of convolutions over time with one weight for each pair of channels.

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


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(None)
        self.count = 0

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if not _is_over_time(call):
            return call
        self.count += 1
        data, weights = call.args
        outputs, inputs, *_ = (int(extent) for extent in weights.ty.shape)
        matrix = relax.op.permute_dims(relax.op.reshape(weights, (outputs, inputs)), [1, 0])
        rows = self.builder_.emit(relax.op.permute_dims(data, [0, 2, 3, 1]))
        product = self.builder_.emit(relax.op.matmul(rows, self.builder_.emit(matrix)))
        return relax.op.permute_dims(product, [0, 3, 1, 2])


def _is_over_time(call: Any) -> bool:
    if not isinstance(call, relax.Call) or getattr(call.op, "name", "") != _CONVOLUTION:
        return False
    _, _, height, width = (int(extent) for extent in call.args[0].ty.shape)
    _, _, *kernel = (int(extent) for extent in call.args[1].ty.shape)
    attributes = call.attrs
    is_plain = attributes.data_layout == "NCHW" and attributes.kernel_layout == "OIHW" and attributes.groups == 1
    steps = {*map(int, attributes.strides), *kernel}
    return is_plain and height == 1 and width > 1 and steps == {1} and not any(map(int, attributes.padding))
