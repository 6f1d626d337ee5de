"""What an accelerator with memory of its own makes a run copy."""

from __future__ import annotations

from dataclasses import dataclass

_MOST = 1 << 50
_MEGABYTE = 1e6


@dataclass(frozen=True)
class Copies:
    """Bytes that were counted where the kernels ran.

    Attributes:
        to_device: Copied to the accelerator's memory in one run.
        from_device: Copied back in one run.
        resident: What stays there from one run to the next: weights, and the accelerator's programs.
    """

    to_device: int
    from_device: int
    resident: int

    @property
    def text(self) -> str:
        """All of it in one line."""
        upload, download, resident = (
            f"{size / _MEGABYTE:.2f} MB" for size in (self.to_device, self.from_device, self.resident)
        )
        return f"each run copies {upload} to the accelerator's memory and {download} back; {resident} stay there"


def read(value: object) -> Copies | None:
    """Read what a runner reports; None where no accelerator ran.

    Raises:
        LookupError, TypeError, ValueError: It is none.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        raise TypeError(f"{value!r:.50} is not a valid account of copies")
    return Copies(*(_count(value[name]) for name in ("to_device", "from_device", "resident")))


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST:
        raise ValueError(f"{value!r:.50} is not a valid number of bytes")
    return value
