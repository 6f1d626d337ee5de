"""Weights of layers in half precision, scaled by a power of two for each output channel, which their results undo.

Numbers of half precision are 65504 at most. A sum of some products x * w is not greater than the greatest |x| times the
sum of all |w|: where that is below 1, no sum of such products can overflow, whatever the finite x are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from toolchain.models import origins

PRODUCTS = 32
"""How many products are summed in half precision at most."""

# Each of 32 additions rounds by 2 ** -11 at most, so that a sum of them is below 0.9 * (1 + 2 ** -11) ** 32 = 0.92.
LIMIT = 0.9
# The same of weights that were rounded to half precision since, by 2 ** -11 at most.
ROUNDED = LIMIT * (1 + 2**-11)

_EXPONENT = 100  # beyond that, single precision ends soon, too


def greatest_sums(rows: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return for each row the sum of its greatest magnitudes, as many as are summed at most.

    Args:
        rows: Weights, [output channel, all that it is summed over].
    """
    size = np.abs(rows.astype(np.float64))
    # Any products may meet in a block, so that the greatest weights of a row bound its sum.
    if size.shape[1] > PRODUCTS:
        size = np.partition(size, -PRODUCTS, axis=1)[:, -PRODUCTS:]
    sums: NDArray[np.float64] = size.sum(axis=1)
    return sums


def scaling_exponents(rows: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return for each row the power of two that brings what `greatest_sums` says near to `LIMIT`, and not above it.

    Larger weights would overflow, and products of smaller ones lose digits at the lower end of half precision.
    """
    sums = greatest_sums(rows)
    usable = np.isfinite(sums) & (sums > 0)
    powers = np.floor(np.log2(LIMIT / np.where(usable, sums, LIMIT))).astype(np.int64)
    return np.clip(powers, -_EXPONENT, _EXPONENT)


# --- scaled weights --------------------------------------------------------------------------------------------------

_CONVOLUTIONS = ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")
_DENSE = "relax.matmul"
_CAST = "relax.astype"
_MATRIX = 2


def scale_weights(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module whose layers in half precision have weights whose sums cannot overflow.

    A layer whose weights are not constant stays as it is.

    Args:
        module: What `to_mixed_precision` returns: layers that multiply half precision, and sum up in single.
    """
    writer = _Scaler()
    functions = {variable: writer.rewrite(function) for variable, function in module.functions_items()}
    rewritten = tvm.IRModule(functions, module.attrs, module.global_infos)
    return tvm.transform.Sequential([relax.transform.Normalize()])(rewritten)


class _Scaler:
    """Writes the blocks of a function anew."""

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}

    def rewrite(self, function: Any) -> Any:
        """Return a function with scaled weights; what is not of Relax stays as it is."""
        if not isinstance(function, relax.Function) or not isinstance(function.body, relax.SeqExpr):
            return function
        blocks = []
        for block in function.body.blocks:
            variable, bindings = relax.DataflowVar if isinstance(block, relax.DataflowBlock) else relax.Var, list[Any]()
            for binding in block.bindings:
                self._values[binding.var] = binding.value
                bindings += self._bindings(binding, variable)
            blocks.append(type(block)(bindings))
        body = relax.SeqExpr(blocks, function.body.body)
        return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)

    def _bindings(self, binding: Any, variable: Any) -> list[Any]:
        call = binding.value
        weight = self._weight(call)
        if weight is None:
            return [binding]
        # A power of two for each output channel: scaling and its undoing change no digit.
        axis = 1 if call.op.name == _DENSE else str(call.attrs.kernel_layout).index("O")
        rows = np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1)
        powers = scaling_exponents(rows)
        if not powers.any():
            return [binding]
        steps = powers.reshape([-1 if dimension == axis else 1 for dimension in range(weight.ndim)])
        half = np.ldexp(weight.astype(np.float64), steps).astype(np.float16)
        kind = binding.var.ty
        layer = variable(str(binding.var.name), kind, origins.step(binding.var.span))
        value = relax.Call(call.op, [call.args[0], relax.const(half)], call.attrs, call.ty_args)
        undo = np.ldexp(1.0, -powers).astype(np.float32).reshape(_along(call, len(kind.shape.values)))
        return [
            relax.VarBinding(layer, value),
            relax.VarBinding(binding.var, relax.op.multiply(layer, relax.const(undo))),
        ]

    def _weight(self, call: Any) -> NDArray[np.float32] | None:
        """Return the weights of a layer that multiplies half precision and sums up in single."""
        if not isinstance(call, relax.Call) or getattr(call.op, "name", "") not in {*_CONVOLUTIONS, _DENSE}:
            return None
        weight = self._values.get(call.args[1], call.args[1]) if isinstance(call.args[1], relax.Var) else call.args[1]
        if isinstance(weight, relax.Call) and getattr(weight.op, "name", "") == _CAST:
            weight = weight.args[0]
        is_half = all(str(argument.ty.dtype) == "float16" for argument in call.args)
        if not isinstance(weight, tvm.ir.GenericConst) or not is_half or str(call.attrs.out_dtype) != "float32":
            return None
        array: NDArray[np.float32] = weight.value.numpy()
        return array if call.op.name != _DENSE or array.ndim == _MATRIX else None


def _along(call: Any, rank: int) -> list[int]:
    """Return a shape that counts the channels of a layer's result."""
    layout = "C".rjust(rank) if call.op.name == _DENSE else str(call.attrs.out_layout or call.attrs.data_layout)
    return [-1 if letter == "C" else 1 for letter in layout]
