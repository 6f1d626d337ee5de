"""What kernels need to know about a board's GPU: its cores, the registers of a work-item, whether images pay.

A target carries it as its `model`, such as `g610-mp4`, for rules and for what writes OpenCL C, which get no more than a
target. Records are no other ones for it: what was tuned depends on the limits of the target alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm

from toolchain import board

_SEPARATOR = "-mp"
_LANES = 4
ITEMS_A_CORE = 128
"""Work-items that keep a core busy while some of them wait for memory."""

_GROUPS_A_CORE = 4
_OWN = 11 / 16  # of a work-item's registers: the others are for weights and addresses


@dataclass(frozen=True)
class Means:
    """What a GPU offers to kernels; the defaults are for one that the board file does not name.

    Attributes:
        cores: Shader cores.
        registers: Registers of 32 bits that a work-item may use before it spills.
        images: Whether weights are read as images: past the unit that loads and stores.
    """

    cores: int = 4
    registers: int = 64
    images: bool = False

    @property
    def items(self) -> int:
        """Work-items that keep all cores busy."""
        return ITEMS_A_CORE * self.cores

    @property
    def groups(self) -> int:
        """Work-groups that keep all cores busy."""
        return _GROUPS_A_CORE * self.cores

    @property
    def vectors(self) -> int:
        """Vectors of four that accumulators, and what is loaded for them, may fill."""
        return int(self.registers / _LANES * _OWN)


def model(of_board: board.Gpu) -> str:
    """Return what a target says of a board's GPU."""
    return f"{of_board.name}{_SEPARATOR}{of_board.cores}"


def means(target: tvm.target.Target) -> Means:
    """Return what kernels for a target may count on; the defaults for a target that says nothing of its GPU."""
    name, _, cores = str(target.attrs.get("model", "")).rpartition(_SEPARATOR)
    row = board.gpus().get(name)
    if row is None or not cores.isdigit():
        return Means()
    return Means(int(cores), int(row["registers"]), bool(row.get("images", False)))
