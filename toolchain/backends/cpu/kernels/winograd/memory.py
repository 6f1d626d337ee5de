"""Memory of Winograd kernels, for what is transformed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit

_BYTES = {"float32": 4, "float16": 2}


@dataclass(frozen=True)
class Space:
    """Part of a buffer.

    Attributes:
        buffer: The buffer.
        start: Its first element.
        lanes: Lanes of a vector.
    """

    buffer: Any
    start: int
    lanes: int

    def vector(self, offset: Any) -> Any:
        return T.Bind(self.buffer[emit.ramp(self.start + offset, self.lanes)])

    def number(self, offset: Any) -> Any:
        """Read one element into all lanes of a vector."""
        return emit.splat(self.buffer[self.start + offset], self.lanes)

    def store(self, value: Any, offset: Any) -> None:
        T.buffer_store(self.buffer, value, [emit.ramp(self.start + offset, self.lanes)])


def spaces(lanes: int, dtype: str, *sizes: int) -> list[Space]:
    """Allocate memory for so many elements each, of a type.

    TVM works out which elements of a buffer are used, for a second or more, and lets buffers share memory that are not
    used at the same time. It does not look through a view: so that is used, and only once in each scope, which is the
    function or the body of a parallel loop. A loop of one iteration is no scope.
    """
    of_line = emit.LINE // _BYTES[dtype]
    starts = [0, *itertools.accumulate(-(-size // of_line) * of_line for size in sizes)]
    memory = T.alloc_buffer((starts[-1],), dtype).data
    view = T.decl_buffer((starts[-1],), dtype, data=memory)
    return [Space(view, start, lanes) for start in starts[:-1]]
