"""How a run's boards change while it measures: the farm gives it more, wants some back, or takes some away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from toolchain.errors import ToolchainError
from toolchain.farm.leases import Lease, LeasedBoard

if TYPE_CHECKING:  # which loads TVM, and a farm is asked without
    from toolchain.tuning.measure import Place

Tell = Callable[[str], None]


class Crew(Protocol):
    """Who measures on places, as a `MeasurePool` does."""

    def add(self, place: Place, fits: Callable[[], bool]) -> None:
        """Measure on one more place, if it fits."""

    def retire(self, name: str, left: Callable[[], None]) -> None:
        """Measure on a place no longer, and say when it is left."""


@dataclass(frozen=True)
class Joining:
    """Follows a lease: lets a crew measure on the boards that it has by now.

    Attributes:
        lease: The lease.
        crew: Who measures.
        place: Makes a place of a board.
        fits: Looks whether a place may be measured on, and tells why not.
        emulated: Whether the run's times are an emulator's.
        tell: Called with a line about each change.
    """

    lease: Lease
    crew: Crew
    place: Callable[[LeasedBoard], Place]
    fits: Callable[[Place], bool]
    emulated: bool
    tell: Tell

    def joined(self, board: LeasedBoard) -> None:
        """See `Follower.joined`."""
        if board.emulated and not self.emulated:
            self.tell(f"{board.name}: not used: it is emulated, and this run measures real boards")
            self.lease.give(board.name, for_good=True)
            return
        place = self.place(board)
        self.tell(f"{board.name}: joins")
        self.crew.add(place, lambda: self._fits(place))

    def _fits(self, place: Place) -> bool:
        if self.fits(place):
            return True
        self.lease.give(place.name, for_good=True)
        return False

    def wanted_back(self, name: str) -> None:
        """See `Follower.wanted_back`."""
        self.tell(f"{name}: returned to the farm after its trial, because others wait for it")
        self.crew.retire(name, lambda: self.lease.give(name))

    def lost(self, name: str, why: ToolchainError) -> None:
        """See `Follower.lost`; who measures there learns it from the session, which is cut."""
        self.tell(f"{name}: {why.message}")
