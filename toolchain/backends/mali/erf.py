"""The error function, which GELU uses, as one quotient of polynomials.

OpenCL's is as exact as possible and branches at each step, and TVM calls it for one number after the other: by Mesa's
figures that takes 257 cycles of loads and stores for four numbers of a GELU, as most of it is spilled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx

from toolchain.backends.mali.rewrite import mutate

_ENDS = 4.0  # beyond that, the function is 1 in single precision
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


def replace_erf(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module whose error functions are kernels of plain arithmetic, within 5e-7; NaN stays NaN.

    Args:
        module: Operators as the importer writes them. Those of double precision stay.
    """
    return mutate(module, _ErfMutator(module))


@relax.expr_functor.mutator
class _ErfMutator(relax.PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: relax.Call) -> Any:
        """Return the call, or a call of the kernel that computes the same."""
        call = super().visit_call_(call)
        if not isinstance(call.op, tvm.ir.Op) or call.op.name != "relax.erf":
            return call
        if str(call.args[0].ty.dtype.dtype) not in {"float16", "float32"}:
            return call
        return self.builder_.call_te(_erf, call.args[0], primfunc_name_hint="erf")


def _erf(data: te.Tensor) -> te.Tensor:
    def element(*indices: Any) -> Any:
        x, limit, unity = data(*indices).astype("float32"), tirx.const(_ENDS, "float32"), tirx.const(1.0, "float32")
        quotient = x * _polynomial(_ABOVE, x * x) / _polynomial(_BELOW, x * x)
        # A comparison with NaN is false, so that it goes through the quotient.
        value = tirx.Select(x > limit, unity, tirx.Select(x < -limit, -unity, quotient))
        return value.astype(data.dtype)

    return te.compute(data.shape, element, name="erf")


def _polynomial(factors: Sequence[float], variable: Any) -> Any:
    """Return a polynomial by Horner's rule; the factors begin with that of the power of zero."""
    value = tirx.const(factors[-1], "float32")
    for factor in reversed(factors[:-1]):
        value = value * variable + tirx.const(factor, "float32")
    return value
