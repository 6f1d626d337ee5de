"""Recurrences over any number of time steps."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import with_definitions
from toolchain.backends.cpu.kernels.recurrent import NAME, Config, RecurrentWriter, kernel_arguments
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.graph.unify import DifferentError
from toolchain.models.converters.sequence.recurrence import Recurrence

__all__ = ["NAME", "kernel"]


def kernel(
    greatest: Recurrence, shaped: Recurrence, indexed: Recurrence, machine: Machine, config: Config, size: tirx.Var
) -> tirx.PrimFunc:
    """Write the kernel; arguments as of the fully connected layers."""
    if not isinstance(shaped.batch, int):
        raise DifferentError("the number of sequences follows from the size")

    def body(*buffers: Any) -> None:
        RecurrentWriter(indexed, machine, config, buffers, greatest.steps).write()

    return with_definitions(emit.kernel(kernel_arguments(shaped), body, {}, size), machine)
