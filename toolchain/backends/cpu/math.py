"""Functions of 32-bit floats spelled out in additions and multiplications, for all lanes of a vector at once.

LLVM has instructions for square roots and roundings only: of an exponential in a vector it makes one call of the C
library for each lane, which takes ten times as long. Each of these is as exact as those calls to about two units in
the last place; infinities and NaNs come out as they do there, and results below 1.2e-38 may become 0.

Sources: the polynomials of exp, log and tanh are those of Cephes (S. Moshier, netlib.org/cephes: expf, logf, tanhf);
that of erf is the rational approximation of Eigen (generic_fast_erf_float).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx
from tvm.ir import prim

from toolchain.backends.cpu.expr import is_guard, rewrite

Expr = Any
Keep = Callable[[Expr], Expr]

_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1, 1, 1)
_EXP_RANGE = (-87.33654, 88.72283)  # where the result is a normal number
_LOG = (
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
_ERF_ABOVE = (
    *(-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05),
    *(-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02),
)
_ERF_BELOW = (
    *(-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03),
    *(-7.37332916720468e-03, -1.42647390514189e-02),
)
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # the product of the first and a small whole number is exact
_MANTISSA = 23  # bits
_WHOLE = 1.5 * 2**_MANTISSA  # what is added to it becomes a whole number, in the low bits


def wide(dtype: str, lanes: int) -> str:
    """Return the name of a vector type."""
    return f"{dtype}x{lanes}" if lanes > 1 else dtype


def splat(value: Expr | float, lanes: int, dtype: str = "float32") -> Expr:
    """Return a vector with the same value in each lane."""
    scalar = tirx.const(value, dtype) if isinstance(value, (int, float)) else value
    return tirx.Broadcast(scalar, lanes) if lanes > 1 else scalar


def round_to_int(x: Expr, lanes: int = 1) -> Expr:
    """Return the whole number that is nearest to each of some small floats, as an int32.

    Adding and subtracting 1.5 * 2^23 as floats would round, too, but the simplifier takes the two for nothing.
    """
    kind, added = wide("int32", lanes), splat(_WHOLE, lanes)
    return tirx.reinterpret(kind, x + added) - tirx.reinterpret(kind, added)


@dataclass(frozen=True)
class Functions:
    """Writes functions of vectors.

    Attributes:
        keep: Binds a value that is used several times, and returns the variable.
        lanes: Elements of a vector; 1 in a loop that is vectorized afterwards.
        dtype: Type of the elements; only limits and products are for others than float32.
    """

    keep: Keep
    lanes: int = 1
    dtype: str = "float32"

    def number(self, value: float) -> Expr:
        """Return a vector of one number."""
        return splat(float(value), self.lanes, self.dtype)

    def clipped(self, x: Expr, low: float, high: float) -> Expr:
        """Return numbers between limits; a NaN stays one, see `numerics.with_nan`."""
        return tirx.min(tirx.max(x, self.number(low)), self.number(high))

    def exp(self, x: Expr) -> Expr:
        """Return 2^n e^r, with a small r: the exponent of e^r is n more then."""
        low, high = (self.number(limit) for limit in _EXP_RANGE)
        x = self.keep(x)
        # Adding and subtracting it again as floats would round, too, but the simplifier takes the two for nothing.
        n = self._bits(x * self.number(math.log2(math.e)) + self.number(_WHOLE))
        n = self.keep(n - self._bits(self.number(_WHOLE)))
        count = self.keep(self._cast("float32", n))
        r = self.keep(x - count * self.number(_LN2_HIGH) - count * self.number(_LN2_LOW))
        usual = self._floats(self._bits(self._polynomial(r, _EXP)) + self._shifted(n))
        above = prim.Select(x <= high, usual, x * self.number(math.inf))  # a NaN, too
        return self.keep(prim.Select(x < low, self.number(0.0), above))

    def log(self, x: Expr) -> Expr:
        """Return the natural logarithm: that of the mantissa, and a multiple of log 2."""
        x, zero = self.keep(x), self.number(0.0)
        small = x < self.number(1.1754944e-38)  # denormal: its exponent field says nothing
        bits = self.keep(self._bits(prim.Select(small, x * self.number(2**25), x)))
        # The mantissa is to be between sqrt(1/2) and sqrt(2).
        exponent = self.keep((bits - self._whole(0x3F3504F3)) >> self._whole(_MANTISSA))
        z = self.keep(self._floats(bits - self._shifted(exponent)) - self.number(1.0))
        e = self.keep(self._cast("float32", exponent) - prim.Select(small, self.number(25.0), zero))
        square = self.keep(z * z)
        rest = self._polynomial(z, _LOG) * z * square + e * self.number(_LN2_LOW) - square * self.number(0.5)
        usual = (z + rest) + e * self.number(_LN2_HIGH)
        unusual = prim.Select(x > zero, x, self.number(math.nan))
        unusual = prim.Select(tirx.EQ(x, zero), self.number(-math.inf), unusual)
        return prim.Select(tirx.And(x > zero, x < self.number(math.inf)), usual, unusual)

    def sigmoid(self, x: Expr) -> Expr:
        """Return 1 / (1 + exp(-x))."""
        return self.keep(self.number(1.0) / (self.number(1.0) + self.exp(self.number(0.0) - x)))

    def tanh(self, x: Expr) -> Expr:
        """Return the hyperbolic tangent: a polynomial near zero, made of the exponential beyond."""
        x = self.keep(x)
        size, square = self.keep(tirx.abs(x)), self.keep(x * x)
        near = self._polynomial(square, _TANH) * square * x + x
        far = self.keep(self.number(1.0) - self.number(2.0) / (self.exp(size + size) + self.number(1.0)))
        far = prim.Select(x < self.number(0.0), self.number(0.0) - far, far)
        return prim.Select(size < self.number(0.625), near, far)

    def erf(self, x: Expr) -> Expr:
        """Return the error function."""
        x = self.keep(self.clipped(x, -4.0, 4.0))
        square = self.keep(x * x)
        return x * self._polynomial(square, _ERF_ABOVE) / self._polynomial(square, _ERF_BELOW)

    def reciprocal_root(self, x: Expr) -> Expr:
        """Return 1 / sqrt(x), for which TVM has no function of vectors."""
        return self.number(1.0) / tirx.sqrt(x)

    def is_nan(self, x: Expr) -> Expr:
        """Return whether a number is a NaN: its bits, without the sign, lie above those of infinity."""
        return tirx.bitwise_and(self._bits(x), self._whole(0x7FFFFFFF)) > self._whole(0x7F800000)

    def power(self, x: Expr, exponent: Expr) -> Expr | None:
        """Return a power that is a product of the number and its roots; None for others."""
        if not isinstance(exponent, prim.FloatImm):
            return None
        x, unit = self.keep(x), self.number(1.0)
        root = tirx.sqrt(x)
        return {
            0.25: tirx.sqrt(root),
            0.5: root,
            0.75: root * tirx.sqrt(root),
            1.0: x,
            1.5: x * root,
            2.0: x * x,
            3.0: x * x * x,
            -0.5: unit / root,
            -1.0: unit / x,
        }.get(float(exponent.value))

    def _polynomial(self, x: Expr, factors: Sequence[float]) -> Expr:
        """Return a polynomial by Horner's rule, the highest power's factor first."""
        value = self.number(factors[0])
        for factor in factors[1:]:
            value = value * x + self.number(factor)
        return value

    def _whole(self, value: int) -> Expr:
        return splat(value, self.lanes, "int32")

    def _cast(self, dtype: str, x: Expr) -> Expr:
        return prim.Cast(wide(dtype, self.lanes), x)

    def _bits(self, x: Expr) -> Expr:
        return tirx.reinterpret(wide("int32", self.lanes), x)

    def _floats(self, bits: Expr) -> Expr:
        return tirx.reinterpret(wide("float32", self.lanes), bits)

    def _shifted(self, exponent: Expr) -> Expr:
        """Return a whole number where a float has its exponent."""
        return exponent << self._whole(_MANTISSA)


_FUNCTIONS: dict[str, Callable[..., Expr | None]] = {
    "tirx.exp": Functions.exp,
    "tirx.log": Functions.log,
    "tirx.log2": lambda write, x: write.log(x) * write.number(math.log2(math.e)),
    "tirx.log10": lambda write, x: write.log(x) * write.number(math.log10(math.e)),
    "tirx.sigmoid": Functions.sigmoid,
    "tirx.tanh": Functions.tanh,
    "tirx.erf": Functions.erf,
    "tirx.pow": Functions.power,
    "tirx.rsqrt": Functions.reciprocal_root,
    "tirx.isnan": Functions.is_nan,
}


def expand(value: Expr, keep: Keep) -> Expr:
    """Return an expression with such functions spelled out.

    Args:
        value: The expression.
        keep: As for `Functions`.
    """
    write = Functions(keep)

    def spelled(node: Expr) -> Expr | None:
        if is_guard(node):
            return node  # what is kept would be computed whether it is guarded or not
        if type(node) is not ir.Call or not isinstance(node.op, ir.Op) or not node.args:
            return None
        if str(getattr(node.args[0].ty, "dtype", "")) != "float32":
            return None
        function = _FUNCTIONS.get(str(node.op.name))
        return None if function is None else function(write, *[rewrite(arg, spelled) for arg in node.args])

    return rewrite(value, spelled)
