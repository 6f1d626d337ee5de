"""Who comes when, and when a roll-out stops: groups, an error threshold and a success threshold, in hawkBit's words."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from toolchain.devices import Device
from toolchain.errors import InputError, did_you_mean

_COUNT = re.compile(r"[1-9][0-9]{0,8}")
_SHARE = re.compile(r"(?P<percent>[0-9]{1,3}(\.[0-9]{1,6})?)%")
_WHOLE = 100.0


@dataclass(frozen=True)
class Share:
    """So many devices, or so many percent of them.

    Attributes:
        value: The number.
        is_percent: Whether it is percent.
    """

    value: float
    is_percent: bool

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Read `5` or `10%`; None if it is neither."""
        if _COUNT.fullmatch(text):
            return cls(float(text), is_percent=False)
        share = _SHARE.fullmatch(text)
        if share and 0 < float(share["percent"]) <= _WHOLE:
            return cls(float(share["percent"]), is_percent=True)
        return None

    def of(self, size: int) -> int:
        """Return how many of `size` devices it is, at least one; part of a device counts as one."""
        return max(1, math.ceil(size * self.value / _WHOLE)) if self.is_percent else int(self.value)

    def __str__(self) -> str:
        return f"{self.value:g}{'%' if self.is_percent else ''}"


@dataclass(frozen=True)
class Thresholds:
    """When a roll-out stops.

    Attributes:
        error: It stops in a group as soon as so many of its devices have failed, or all of them.
        success: Of a group so many percent must be done before the next one begins.
    """

    error: Share = Share(1, is_percent=False)
    success: float = 0.0

    def stops(self, failed: int, size: int) -> bool:
        """Tell whether so many failures in a group of a size end the roll-out at once: all of them always do."""
        return failed >= min(self.error.of(size), size)

    def passes(self, done: int, size: int) -> bool:
        """Tell whether the next group may begin after one of a size."""
        return done * _WHOLE >= size * self.success


def words(text: str) -> tuple[str, ...]:
    """Split what `--waves` is given."""
    return tuple(word.strip() for word in text.split(","))


def assigned(waves: Sequence[str], devices: Mapping[str, Device]) -> dict[str, int]:
    """Give each device its group, from 1 on; they come in the order of the fleet.

    Args:
        waves: For each group up to how many devices are reached with it, such as `1` or `10%`; or a tag, whose devices
            it adds. One that adds nothing is no group.
        devices: The devices.

    Raises:
        InputError: A wave is none of these, they shrink, or not every device is reached.
    """
    groups: dict[str, int] = {}
    reached = 0
    for word in waves:
        share = Share.read(word)
        if share:
            reached = _grown(word, min(share.of(len(devices)), len(devices)), reached)
            left = [name for name in devices if name not in groups]
            chosen = left[: max(0, reached - len(groups))]
        else:
            chosen = [name for name in _tagged(word, devices) if name not in groups]
        groups |= dict.fromkeys(chosen, max(groups.values(), default=0) + 1)
    if missed := len(devices) - len(groups):
        raise InputError(
            f"the waves {','.join(waves)} leave out {missed} of {len(devices)} devices",
            hint="let the last wave be 100%",
        )
    return {name: groups[name] for name in devices}


def _grown(word: str, reached: int, before: int) -> int:
    if reached < before:
        raise InputError(
            f"wave {word} reaches {reached} device(s), and the one before it {before}",
            hint="each wave is the total number of devices reached so far: 1,10%,100%",
        )
    return reached


def _tagged(word: str, devices: Mapping[str, Device]) -> list[str]:
    if found := [name for name, device in devices.items() if word in device.tags]:
        return found
    tags = sorted({tag for device in devices.values() for tag in device.tags})
    raise InputError(
        f"{word!r} is not a valid wave: not a number of devices, a percentage, or a tag of a device",
        details=f"tags: {', '.join(tags) or 'none'}",
        hint=did_you_mean(word, tags) or "write waves such as 1,10%,100%",
    )
