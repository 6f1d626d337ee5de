"""What the templates in float16 share: data that is rounded first, and sums on the stack."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Buffer, Expr
from toolchain.backends.cpu.layers import FLOAT16

_ROUNDING = 3  # vector operations that load, round and store


def rounded(data: Buffer, lanes: int) -> Buffer:
    """Write the rounding of a plain tensor, and return the buffer with the result; a vector lies behind it."""
    size = int(data.shape[0])
    vectors = size // lanes
    result = emit.flat(T.alloc_buffer((size + lanes,), FLOAT16))
    with emit.shared(vectors, _ROUNDING * vectors) as number:
        index = emit.ramp(number * lanes, lanes)
        T.buffer_store(result, emit.in_type(data[index], FLOAT16, lanes), [index])
    for number in range(vectors * lanes, size):
        T.buffer_store(result, emit.in_type(data[number], FLOAT16, 1), [number])
    return result


def zeros_on_stack(count: int, lanes: int, dtype: str) -> Buffer:
    """Return a small buffer of vectors of zeros."""
    buffer = emit.on_stack(count, lanes, dtype)
    with T.serial(0, count) as number:
        T.buffer_store(buffer, emit.splat(0.0, lanes, dtype), [number])
    return buffer


def keep(sums: Buffer, chain: Sequence[Expr], number: Expr) -> None:
    """Add the sums of a chain to those of the chains before it, in a small buffer; chain 0 finds nothing there."""
    with T.If(number < 1):
        with T.Then():
            for index, value in enumerate(chain):
                T.buffer_store(sums, value, [index])
        with T.Else():
            for index, value in enumerate(chain):
                T.buffer_store(sums, sums[index] + value, [index])
