"""Attributes of kernels, and values by which backends and tuner know each other's work."""

from __future__ import annotations

from dataclasses import dataclass

LAYER = "toolchain.layer"
"""A kernel that a template of the backend computes: its layer as JSON, which is what it is tuned as."""
EXACT = "toolchain.exact"
"""The same kernel: its layer as JSON with the very buffers that it has in its network."""
CHOICE = "toolchain.choice"
"""A kernel that a template has written: the choice that it was written by, as JSON."""

OPERATIONS = "toolchain.operations"
"""A kernel that no template computes, in a bundle's graph: its arithmetic operations, as text."""

NODES = "toolchain.nodes"
"""The function `main` of a bundle's graph: for each call of a kernel, in order, its name and which nodes of the model's
file it computes, the one with most of the work first, as JSON."""


@dataclass(frozen=True)
class Cycles:
    """What a model of an accelerator says of one kernel.

    Attributes:
        cycles: Clock cycles.
        macs: Multiply-adds that count.
        macs_per_cycle: The most that the accelerator does in a cycle.
    """

    cycles: int
    macs: int
    macs_per_cycle: int
