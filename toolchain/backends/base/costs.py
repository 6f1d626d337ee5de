"""A backend's estimates of kernels by their machine code, without a board; nothing of it is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import tvm

    from toolchain.errors import BuildError
    from toolchain.report import Section, Table

Tell = Callable[[str], None]
"""Takes one line about progress."""


@dataclass(frozen=True)
class Estimate:
    """A model's estimate of one scheduled kernel.

    Attributes:
        ms: Estimated milliseconds of one call; None if the model has no estimate.
        spills: Values that are written to memory for want of registers.
        fault: Why there is no estimate, or why a device would not run the kernel; empty if all is well.
        answered: Whether the compiler answered; if it did not, it may another time.
    """

    ms: float | None = None
    spills: int = 0
    fault: str = ""
    answered: bool = True


class NetworkCosts(Protocol):
    """The costs of all kernels of a network."""

    def document(self) -> dict[str, Any]:
        """Return the costs for --json, with the stamp of the model."""

    def shown(self) -> list[str | Table]:
        """Return the costs as text and tables for a terminal."""

    def sections(self) -> list[Section]:
        """Return the costs as sections of an HTML page."""

    def refusal(self) -> BuildError | None:
        """Return the error of a network with kernels that the compiler refuses; None if it takes all."""


class CostModel(Protocol):
    """Estimates the costs of kernels by the machine code that a compiler makes of them."""

    @property
    def name(self) -> str:
        """The device of the estimates: those of two devices are not comparable."""

    @property
    def identity(self) -> str:
        """The compiler of the estimates, its version first: those of two compilers are not comparable, either."""

    @property
    def stamp(self) -> str:
        """The mark of every figure: `modelled`, and by which compiler."""

    @property
    def obstacle(self) -> str:
        """Why the model cannot judge candidates; empty if it can."""

    def estimates(self, modules: Sequence[tvm.IRModule], *, spilling: bool = True) -> list[Estimate]:
        """Estimate scheduled kernels, each the function `main` of a module.

        Args:
            modules: The kernels.
            spilling: Whether kernels that spill get a time as well: that is most of the work.

        Raises:
            BuildError: The compiler does not work here. A kernel that it refuses is no error: its estimate says so.
        """

    def network(self, name: str, module: tvm.IRModule) -> NetworkCosts:
        """Return the costs of a scheduled Relax module's kernels; without any on the device, the result says so."""
