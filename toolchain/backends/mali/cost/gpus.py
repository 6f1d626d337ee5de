"""The Mali GPUs that Mesa's compiler makes machine code for, and what is known of their cores."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain import board
from toolchain.errors import InputError, did_you_mean


@dataclass(frozen=True)
class Gpu:
    """One kind of Mali GPU.

    Attributes:
        name: Its short name, as options and board files write it.
        title: Its name in full.
        product: What Mesa calls its kind, in hexadecimal.
        family: Its architecture.
        registers: Registers of 32 bits that a work-item may use before it spills.
        arithmetic: What the compiler's arithmetic cycles are multiplied by: it counts for cores of twice the width on
            the first generations of Bifrost.
        images: Whether its kernels read weights as images.
        lanes: Work-items that run in step.
        judged: Whether the compiler is good enough on it that spills say something of the kernel.
    """

    name: str
    title: str
    product: str
    family: str
    registers: int
    arithmetic: float = 1.0
    images: bool = False
    lanes: int = 1
    judged: bool = True


GPUS = {name: Gpu(name, **table) for name, table in board.gpus().items()}
"""By name: T860 is shown and never judged by, as Mesa's allocator of registers for Midgard is weak."""


def gpu(name: str) -> Gpu:
    """Return a GPU by its name, in letters of any size, with or without `Mali-`.

    Raises:
        InputError: Mesa's compiler is not asked for it.
    """
    short = board.short_gpu(name)
    if short not in GPUS:
        raise InputError(
            f"there is no cost model of the GPU {name!r}",
            details="known GPUs: " + ", ".join(GPUS),
            hint=did_you_mean(short.rpartition("-")[2], list(GPUS)) or "choose one of these",
        )
    return GPUS[short]
