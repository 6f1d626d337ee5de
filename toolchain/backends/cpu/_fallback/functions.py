"""Functions of 32-bit floats spelled out in additions and multiplications, for all lanes of a vector at once.

LLVM has instructions for square roots and roundings only: of an exponential in a vector it makes one call of the C
library for each lane, which takes ten times as long. Each of these is as exact as those calls to about two units in
the last place; infinities and NaNs come out as they do there, and results below 2.4e-38 may become 0.

Sources: the polynomials of exp, log and tanh are those of Cephes (S. Moshier, netlib.org/cephes: expf, logf, tanhf);
that of erf is the rational approximation of Eigen (generic_fast_erf_float).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, tirx
from tvm.ir import prim

from toolchain.backends.cpu._fallback.expr import is_guard, rewritten

Expr = Any
Keep = Callable[[Expr], Expr]

_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
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
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # their sum is ln 2; few bits of the first are set
_LOG2_E, _LOG10_E = 1.4426950408889634, 0.4342944819032518
_INFINITY = float("inf")


def spelled_out(value: Expr, keep: Keep) -> Expr:
    """Return an expression with such functions spelled out.

    Args:
        value: The expression.
        keep: Told what is used several times; returns what stands for it.
    """

    def spelled(part: Expr) -> Expr | None:
        if is_guard(part):
            return part  # what is kept would be computed whether it is guarded or not
        if type(part) is not ir.Call or not isinstance(part.op, ir.Op) or str(part.ty.dtype) != "float32":
            return None
        write = _FUNCTIONS.get(str(part.op.name))
        return None if write is None else write([rewritten(arg, spelled) for arg in part.args], keep)

    return rewritten(value, spelled)


def _c(value: float) -> Expr:
    return tirx.const(value, "float32")


def _polynomial(x: Expr, factors: Sequence[float]) -> Expr:
    value = _c(factors[0])
    for factor in factors[1:]:
        value = value * x + _c(factor)
    return value


def _exp(args: Sequence[Expr], keep: Keep) -> Expr:
    """2^n e^r, of which the last factor 2 is a step of its own: 2^128 is no float, but the result may be one."""
    x = keep(args[0])
    # Written such that a NaN stays what it is; below the least of these numbers the result is 0.
    x = prim.Select(x > _c(88.8), _c(88.8), x)
    x = keep(prim.Select(x < _c(-87.33), _c(-87.33), x))
    n = keep(tirx.nearbyint(x * _c(_LOG2_E)))
    r = keep((x - n * _c(_LN2_HIGH)) - n * _c(_LN2_LOW))
    power = (_polynomial(r, _EXP) * r) * r + r + _c(1.0)
    exponent = (prim.Cast("int32", n) + tirx.const(126, "int32")) << tirx.const(23, "int32")
    return (power * _c(2.0)) * tirx.reinterpret("float32", exponent)


def _log(args: Sequence[Expr], keep: Keep) -> Expr:
    x = keep(args[0])
    small = x < _c(1.1754944e-38)  # denormal: its exponent field says nothing
    bits = keep(tirx.reinterpret("int32", prim.Select(small, x * _c(33554432.0), x)))
    # The mantissa is to be between sqrt(1/2) and sqrt(2).
    exponent = keep((bits - tirx.const(0x3F3504F3, "int32")) >> tirx.const(23, "int32"))
    z = keep(tirx.reinterpret("float32", bits - (exponent << tirx.const(23, "int32"))) - _c(1.0))
    e = keep(prim.Cast("float32", exponent) - prim.Select(small, _c(25.0), _c(0.0)))
    square = keep(z * z)
    rest = _polynomial(z, _LOG) * z * square + e * _c(_LN2_LOW) - square * _c(0.5)
    found = (z + rest) + e * _c(_LN2_HIGH)
    usual = tirx.And(x > _c(0.0), x < _c(_INFINITY))
    unusual = prim.Select(x > _c(0.0), x, _c(float("nan")))
    return prim.Select(usual, found, prim.Select(tirx.EQ(x, _c(0.0)), _c(-_INFINITY), unusual))


def _sigmoid(args: Sequence[Expr], keep: Keep) -> Expr:
    return _c(1.0) / (_c(1.0) + _exp([_c(0.0) - args[0]], keep))


def _tanh(args: Sequence[Expr], keep: Keep) -> Expr:
    x = keep(args[0])
    size = keep(tirx.abs(x))
    square = keep(x * x)
    near = _polynomial(square, _TANH) * square * x + x
    far = keep(_c(1.0) - _c(2.0) / (_exp([size + size], keep) + _c(1.0)))
    return prim.Select(size < _c(0.625), near, prim.Select(x < _c(0.0), _c(0.0) - far, far))


def _erf(args: Sequence[Expr], keep: Keep) -> Expr:
    x = keep(args[0])
    x = prim.Select(x > _c(4.0), _c(4.0), x)
    x = keep(prim.Select(x < _c(-4.0), _c(-4.0), x))
    square = keep(x * x)
    return x * _polynomial(square, _ERF_ABOVE) / _polynomial(square, _ERF_BELOW)


def _pow(args: Sequence[Expr], keep: Keep) -> Expr | None:
    """Powers that are products of the number and its roots; None for others."""
    if not isinstance(args[1], prim.FloatImm):
        return None
    x = keep(args[0])
    root = tirx.sqrt(x)
    return {
        0.25: tirx.sqrt(root),
        0.5: root,
        0.75: root * tirx.sqrt(root),
        1.0: x,
        1.5: x * root,
        2.0: x * x,
        3.0: x * x * x,
        -0.5: _c(1.0) / root,
        -1.0: _c(1.0) / x,
    }.get(float(args[1].value))


_FUNCTIONS: dict[str, Callable[[Sequence[Expr], Keep], Expr | None]] = {
    "tirx.exp": _exp,
    "tirx.log": _log,
    "tirx.log2": lambda args, keep: _log(args, keep) * _c(_LOG2_E),
    "tirx.log10": lambda args, keep: _log(args, keep) * _c(_LOG10_E),
    "tirx.sigmoid": _sigmoid,
    "tirx.tanh": _tanh,
    "tirx.erf": _erf,
    "tirx.pow": _pow,
}
