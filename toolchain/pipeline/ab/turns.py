"""The order in which two sides run: in turns, round by round."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

Order = tuple[int, int]
"""The index of the side that runs first in a round, and of the one that runs second."""

_MAX_REPEATS = 8  # of rounds in which the device was throttled
_COOLING_S = 1.0


class Turns:
    """The turns of two sides on one device.

    Attributes:
        hot: Why no more rounds follow; empty unless the device throttled too often.
    """

    def __init__(self) -> None:
        self.hot = ""
        self._repeats = 0
        self._repeating = False

    def rounds(self, count: float = math.inf) -> Iterator[tuple[int, Order]]:
        """Yield the number of each round, from 0 on, and its order.

        Each side goes first in every other round: the second run finds a warmer device, and drift affects both alike.
        """
        number = 0
        while number < count and not self.hot:
            self._repeating = False
            yield number, (0, 1) if number % 2 == 0 else (1, 0)
            if not self._repeating:
                number += 1
            elif not self.hot:
                time.sleep(_COOLING_S)

    def repeat(self, signs: Sequence[str]) -> None:
        """Have the round repeated after a pause, since the device was throttled; `signs` name how.

        The order is the same: perhaps only that order heats the device.
        """
        self._repeating = True
        self._repeats += 1
        if self._repeats > _MAX_REPEATS:
            self.hot = f"the device throttled in {self._repeats} rounds: {', '.join(signs)}"
