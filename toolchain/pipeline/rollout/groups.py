"""The groups of a roll-out, and its error and success thresholds; the terms are hawkBit's."""

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
_ALL_PERCENT = 100.0


@dataclass(frozen=True)
class Share:
    """A number of devices, or a percentage of them."""

    value: float
    is_percent: bool

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Read `5` or `10%`; None if it is neither."""
        if _COUNT.fullmatch(text):
            return cls(float(text), is_percent=False)
        share = _SHARE.fullmatch(text)
        if share and 0 < float(share["percent"]) <= _ALL_PERCENT:
            return cls(float(share["percent"]), is_percent=True)
        return None

    def of(self, size: int) -> int:
        """Return how many of `size` devices it is, at least one; part of a device counts as one."""
        return max(1, math.ceil(size * self.value / _ALL_PERCENT)) if self.is_percent else int(self.value)

    def __str__(self) -> str:
        return f"{self.value:g}{'%' if self.is_percent else ''}"


@dataclass(frozen=True)
class Thresholds:
    """When a roll-out stops."""

    # It stops in a group as soon as this many of its devices have failed, or all of them
    error: Share = Share(1, is_percent=False)
    success: float = 0.0  # percentage of a group that must be done before the next one begins

    def stops(self, failed: int, size: int) -> bool:
        return failed >= min(self.error.of(size), size)

    def passes(self, finished: int, size: int) -> bool:
        """Whether the next group may begin after one of this size."""
        return finished * _ALL_PERCENT >= size * self.success


def parse_waves(text: str) -> tuple[str, ...]:
    return tuple(wave.strip() for wave in text.split(","))


def assign(waves: Sequence[str], devices: Mapping[str, Device]) -> dict[str, int]:
    """Give each device its group, from 1 on, in the order of the fleet.

    A wave is the total number of devices that are reached with it, such as `1` or `10%`, or a tag, whose devices it
    adds. A wave that adds nothing is not a group.

    Raises:
        InputError: A wave is none of these, the totals shrink, or not every device is reached.
    """
    groups: dict[str, int] = {}
    reached = 0
    for wave in waves:
        share = Share.read(wave)
        if share:
            total = min(share.of(len(devices)), len(devices))
            if total < reached:
                raise InputError(
                    f"wave {wave} reaches {total} device(s), and the one before it {reached}",
                    hint="each wave is the total number of devices reached so far: 1,10%,100%",
                )
            reached = total
            remaining = [name for name in devices if name not in groups]
            chosen = remaining[: max(0, reached - len(groups))]
        else:
            chosen = [name for name in _tagged(wave, devices) if name not in groups]
        groups |= dict.fromkeys(chosen, max(groups.values(), default=0) + 1)
    if missed := len(devices) - len(groups):
        raise InputError(
            f"the waves {','.join(waves)} leave out {missed} of {len(devices)} devices",
            hint="let the last wave be 100%",
        )
    return {name: groups[name] for name in devices}


def _tagged(tag: str, devices: Mapping[str, Device]) -> list[str]:
    if names := [name for name, device in devices.items() if tag in device.tags]:
        return names
    tags = sorted({tag for device in devices.values() for tag in device.tags})
    raise InputError(
        f"{tag!r} is not a valid wave: not a number of devices, a percentage, or a tag of a device",
        details=f"tags: {', '.join(tags) or 'none'}",
        hint=did_you_mean(tag, tags) or "write waves such as 1,10%,100%",
    )
