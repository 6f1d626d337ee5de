"""What a device's kernels ran on, in the words of its driver."""

from __future__ import annotations

from dataclasses import dataclass

_LONGEST = 200
_MOST_UNITS = 1 << 20


@dataclass(frozen=True)
class Processor:
    """What computes beside the CPU, as it tells of itself; a text is empty where it does not tell.

    Attributes:
        name: Its name.
        driver: Version of its driver.
        version: The interface that it is driven by, and its version.
        units: How many compute units it has; 0 where it does not tell.
    """

    name: str
    driver: str
    version: str
    units: int

    @property
    def text(self) -> str:
        """All of it in one line."""
        units = f"{self.units} compute unit(s)" if self.units else ""
        driver = f"driver {self.driver}" if self.driver else ""
        return ", ".join(item for item in (self.name, units, self.version, driver) if item)


def read(value: object) -> Processor | None:
    """Read what a runner reports; None where its kernels ran on the CPU.

    Raises:
        LookupError, TypeError, ValueError: It is none: a driver, or whoever took its place, may say anything.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        raise TypeError(f"{value!r:.50} is not a valid processor")
    units = value["units"]
    if isinstance(units, bool) or not isinstance(units, int) or not 0 <= units <= _MOST_UNITS:
        raise ValueError(f"{units!r:.50} is not a valid number of compute units")
    return Processor(text(value["name"]), text(value["driver"]), text(value["version"]), units)


def text(value: object) -> str:
    """Return a text of the device's that a terminal and a page can show."""
    if not isinstance(value, str) or len(value) > _LONGEST or not (value.isascii() and value.isprintable()):
        raise ValueError(f"{value!r:.50} is not a valid name or version")
    return value
