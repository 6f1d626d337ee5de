"""Attributes of kernels by which backends, tuner and compiler recognize them."""

from __future__ import annotations

from dataclasses import dataclass

LAYER = "toolchain.layer"
"""The layer, as JSON, of a kernel that a template computes: the tuner's name of it."""
EXACT = "toolchain.exact"
"""The same layer, as JSON, with the buffers and constants that it has in its network."""
CHOICE = "toolchain.choice"
"""The choice, as JSON, of a kernel that a template has written."""

EXAMPLES = "toolchain.examples"
"""Arguments of a template's kernel, by number, that cannot be random numbers when it is measured."""

OPERATIONS = "toolchain.operations"
"""A kernel that no template computes, in a bundle's graph: its arithmetic operations, as text."""

NODES = "toolchain.nodes"
"""The function `main` of a bundle's graph: for each call of a kernel, in order, its name and which nodes of the model's
file it computes, the one with most of the work first, as JSON."""


@dataclass(frozen=True)
class Cycles:
    """A model's cycles of one kernel.

    Attributes:
        cycles: Clock cycles.
        macs: Useful multiply-adds.
        macs_per_cycle: The accelerator's multiply-adds in a cycle at best.
    """

    cycles: int
    macs: int
    macs_per_cycle: int
