"""The file that the lines are in, open for reading: whatever takes its place meanwhile, this stays the same file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_SEARCHED = 1 << 16


class Source:
    """A file of records.

    Args:
        path: Where it is.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.status = os.fstat(self._handle)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)

    @property
    def path_of_handle(self) -> str:
        """A path by which another process opens this very file, whatever has its place by then."""
        return f"/proc/{os.getpid()}/fd/{self._handle}"

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes between two places, or fewer where the file has become shorter."""
        parts = []
        while start < stop and (part := os.pread(self._handle, stop - start, start)):
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def chunks(self, start: int, size: int) -> Iterator[tuple[int, int]]:
        """Cut the whole lines behind a place into chunks of about so many bytes; yield where each begins and ends."""
        while (stop := self._line_end(start + size - 1)) is not None:
            yield start, stop
            start = stop
        last = self._last_line_end(start)
        if last > start:
            yield start, last

    def _line_end(self, start: int) -> int | None:
        """Return where the line ends that a byte is in, its newline included; None if it has no end."""
        while start < self.status.st_size:
            part = self.read(start, min(start + _SEARCHED, self.status.st_size))
            if b"\n" in part:
                return start + part.index(b"\n") + 1
            if not part:
                return None
            start += len(part)
        return None

    def _last_line_end(self, first: int) -> int:
        """Return where the last line of the file with an end ends; `first` if none behind that has one."""
        stop = self.status.st_size
        while stop > first:
            start = max(first, stop - _SEARCHED)
            place = self.read(start, stop).rfind(b"\n")
            if place >= 0:
                return start + place + 1
            stop = start
        return first
