"""The file of records, open for reading: it stays the same file even if another one replaces it meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_SEARCHED = 1 << 16


class Source:
    """A file of records.

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
        """A path by which another process opens the same file, even if it was replaced."""
        return f"/proc/{os.getpid()}/fd/{self._handle}"

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes between two offsets, or fewer if the file has been truncated."""
        blocks = []
        while start < stop and (block := os.pread(self._handle, stop - start, start)):
            blocks.append(block)
            start += len(block)
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def chunks(self, start: int, size: int) -> Iterator[tuple[int, int]]:
        """Split the complete lines from an offset on into chunks of about `size` bytes; yield the bounds of each."""
        while (stop := self._line_end(start + size - 1)) is not None:
            yield start, stop
            start = stop
        last = self._last_line_end(start)
        if last > start:
            yield start, last

    def _line_end(self, start: int) -> int | None:
        """Return where the line of a byte ends, its newline included; None if it has no newline."""
        while start < self.status.st_size:
            block = self.read(start, min(start + _SEARCHED, self.status.st_size))
            if b"\n" in block:
                return start + block.index(b"\n") + 1
            if not block:
                return None
            start += len(block)
        return None

    def _last_line_end(self, first: int) -> int:
        """Return where the last complete line of the file ends; `first` if there is none after that."""
        stop = self.status.st_size
        while stop > first:
            start = max(first, stop - _SEARCHED)
            end = self.read(start, stop).rfind(b"\n")
            if end >= 0:
                return start + end + 1
            stop = start
        return first
