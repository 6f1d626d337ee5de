"""What a pool of boards tells of itself, for the progress table and for whoever watches the farm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from toolchain.tuning.trials import Measured, Trial

Kind = Literal["started", "ended", "lost", "quarantined", "back", "cooling", "cooled", "slower", "stock"]


@dataclass(frozen=True)
class Event:
    """Something that happened at a place.

    Attributes:
        kind: A trial `started` or `ended`; the board was `lost`, was `quarantined` after several losses, came `back`;
            it is `cooling` down, has `cooled`, stays `slower` for good; it turned out to be TVM's own `stock` server.
        place: Name of the place.
        detail: What is to be said of it, in one line.
        trial: The trial, where it is about one.
        measured: Its result, where it ended; a trial whose board had throttled starts and ends once more.
    """

    kind: Kind
    place: str
    detail: str = ""
    trial: Trial | None = None
    measured: Measured | None = None


Observer = Callable[[Event], None]
"""Called with every event, in the thread of the place."""
