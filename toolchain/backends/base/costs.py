"""What a backend's model of machine code says of kernels, without a board; nothing of it is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import tvm

    from toolchain import page
    from toolchain.errors import BuildError
    from toolchain.tables import Table

Tell = Callable[[str], None]
"""Takes one line about progress."""


@dataclass(frozen=True)
class Estimate:
    """What a model says of one scheduled kernel.

    Attributes:
        ms: Milliseconds that one call takes, estimated; None if the model does not know.
        spills: Values that are written to memory for want of registers.
        fault: Why nothing is known, or why a device would not run it; empty if all is well.
        answered: Whether that is known of the kernel; if not, the compiler did not answer, and may another time.
    """

    ms: float | None = None
    spills: int = 0
    fault: str = ""
    answered: bool = True


class NetworkCosts(Protocol):
    """What all kernels of a network cost."""

    def document(self) -> dict[str, Any]:
        """Return them for --json, with the stamp that says what they are by."""

    def shown(self) -> list[str | Table]:
        """Return what a person is shown."""

    def sections(self) -> list[page.Section]:
        """Return what a page has of them."""

    def refusal(self) -> BuildError | None:
        """Return what a command ends with as the compiler refuses kernels; None if it takes all."""


class CostModel(Protocol):
    """Tells what kernels cost by the machine code that a compiler makes of them."""

    @property
    def name(self) -> str:
        """What the estimates are for: those of two names are not compared with each other."""

    @property
    def identity(self) -> str:
        """What the estimates are by, its version first: those of two are not compared with each other, either."""

    @property
    def stamp(self) -> str:
        """What every figure is marked with: `modelled`, and by what."""

    @property
    def obstacle(self) -> str:
        """Why candidates cannot be judged by it; empty if they can."""

    def estimates(self, modules: Sequence[tvm.IRModule], *, spilling: bool = True) -> list[Estimate]:
        """Estimate scheduled kernels, each the function `main` of a module.

        Args:
            modules: They.
            spilling: Whether the time of a kernel that spills is wanted, too: it is most of the work.

        Raises:
            BuildError: The compiler does not work here; a kernel that it refuses is told in its estimate.
        """

    def network(self, name: str, module: tvm.IRModule) -> NetworkCosts:
        """Say what the kernels of a scheduled Relax module cost; of one that has none on the device, just that."""
