"""The error function, which GELU wants, as one quotient of polynomials.

OpenCL's is as exact as it can be and asks at each step where it is, and TVM calls it for one number after the other: by
Mesa's figures that takes 257 cycles of loads and stores for four numbers of a GELU, as most of it is spilled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx

_ENDS = 4.0  # beyond which it is one, in single precision
# Of x^2, such that erf(x) = x above / below; fitted for the least relative difference, which is 2.5e-8 before rounding.
_ABOVE = (
    1.128379139300595,
    0.1935452519322559,
    0.0531017713868342,
    0.0038833523131800636,
    0.00028456612146409566,
    1.986781322157553e-06,
)
_BELOW = (
    1.0,
    0.5048575690938638,
    0.11535007891190929,
    0.015207267686892843,
    0.0011855732272250796,
    3.742017583150551e-05,
)


def as_quotients(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module whose error functions are kernels of plain arithmetic, within 5e-7; NaN stays NaN.

    Args:
        module: Operators as the importer writes them. Those of double precision stay.
    """
    writer = _Written(module)
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            writer.builder_.update_func(name, writer.visit_expr(function))
    result: tvm.IRModule = writer.builder_.get()
    return result


@relax.expr_functor.mutator
class _Written(relax.PyExprMutator):  # type: ignore[misc]
    """Writes the kernel of each call in its place."""

    def visit_call_(self, call: relax.Call) -> Any:
        """Return the call, or what computes the same."""
        call = super().visit_call_(call)
        if not isinstance(call.op, tvm.ir.Op) or call.op.name != "relax.erf":
            return call
        if str(call.args[0].ty.dtype.dtype) not in {"float16", "float32"}:
            return call
        return self.builder_.call_te(_erf, call.args[0], primfunc_name_hint="erf")


def _erf(data: te.Tensor) -> te.Tensor:
    unity, four = (tirx.const(number, "float32") for number in (1.0, _ENDS))

    def element(*indices: Any) -> Any:
        x = data(*indices).astype("float32")
        quotient = x * _polynomial(_ABOVE, x * x) / _polynomial(_BELOW, x * x)
        value = tirx.Select(x > four, unity, tirx.Select(x < -four, -unity, quotient))
        return value.astype(data.dtype)

    return te.compute(data.shape, element, name="erf")


def _polynomial(factors: Sequence[float], variable: Any) -> Any:
    """Return a polynomial, whose factors begin with that of the power of zero."""
    value = tirx.const(factors[-1], "float32")
    for factor in reversed(factors[:-1]):
        value = value * variable + tirx.const(factor, "float32")
    return value
