"""How much more memory a piece of work takes at its most, whatever this process has needed before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_PEAK = "5"  # proc(5): sets the peak to what is resident now


def kib(name: str) -> int:
    """Return one of this process's figures in KiB, such as `VmHWM`."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1])


@contextlib.contextmanager
def at_most(limit_kib: int) -> Iterator[None]:
    """See that the peak of a block lies less than so much above what is resident before it."""
    RESET.write_text(_PEAK)
    before = kib("VmRSS")
    yield
    assert kib("VmHWM") - before < limit_kib
