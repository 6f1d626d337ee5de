"""The events of a pool of boards, for the progress table and for those who watch the farm."""

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
            it is `cooling` down, has `cooled`, stays `slower`; it runs TVM's own `stock` server.
        place: Name of the place.
        detail: Details as one line of text.
        trial: The trial, if the event is about one.
        measured: Its result, if it ended; a trial whose board had throttled starts and ends once more.
    """

    kind: Kind
    place: str
    detail: str = ""
    trial: Trial | None = None
    measured: Measured | None = None


Observer = Callable[[Event], None]
"""Called with every event, in the thread of the place."""
