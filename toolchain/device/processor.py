"""The accelerator that kernels ran on, as its driver describes it, and the copies that its memory requires."""

from __future__ import annotations

from dataclasses import dataclass

_LONGEST = 200
_MOST_UNITS = 1 << 20
_MOST_BYTES = 1 << 50
_MEGABYTE = 1e6


@dataclass(frozen=True)
class Processor:
    """An accelerator; a text is empty and a number 0 if its driver does not report it.

    Attributes:
        name: Its name.
        driver: Version of its driver.
        version: Its interface, such as OpenCL, with the version.
        units: Number of its compute units.
    """

    name: str
    driver: str
    version: str
    units: int

    @property
    def text(self) -> str:
        """One line for people."""
        units = f"{self.units} compute unit(s)" if self.units else ""
        driver = f"driver {self.driver}" if self.driver else ""
        return ", ".join(item for item in (self.name, units, self.version, driver) if item)


def read(value: object) -> Processor | None:
    """Read the processor in a runner's report; None if the kernels ran on the CPU.

    Raises:
        LookupError, TypeError, ValueError: It is not valid: a driver may report anything.
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
    """Return a text of the device, checked: it is short and has printable ASCII letters only."""
    if not isinstance(value, str) or len(value) > _LONGEST or not (value.isascii() and value.isprintable()):
        raise ValueError(f"{value!r:.50} is not a valid name or version")
    return value


@dataclass(frozen=True)
class Copies:
    """Bytes that an accelerator with its own memory copies, as its runtime counted them.

    Attributes:
        to_device: Copied to the accelerator's memory in one run.
        from_device: Copied back in one run.
        resident: Bytes that stay there between runs: weights, and the accelerator's programs.
    """

    to_device: int
    from_device: int
    resident: int

    @property
    def text(self) -> str:
        """One line for people."""
        sizes = (self.to_device, self.from_device, self.resident)
        upload, download, resident = (f"{size / _MEGABYTE:.2f} MB" for size in sizes)
        return f"each run copies {upload} to the accelerator's memory and {download} back; {resident} stay there"


def read_copies(value: object) -> Copies | None:
    """Read the copies in a runner's report; None if no accelerator with its own memory ran.

    Raises:
        LookupError, TypeError, ValueError: They are not valid.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        raise TypeError(f"{value!r:.50} is not a valid account of copies")
    counts = [value[name] for name in ("to_device", "from_device", "resident")]
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < _MOST_BYTES:
            raise ValueError(f"{count!r:.50} is not a valid number of bytes")
    return Copies(*counts)
