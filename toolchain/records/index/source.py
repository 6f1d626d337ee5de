"""The file of records, open for reading: it stays the same file even if another one replaces it meanwhile."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from toolchain.errors import InputError
from toolchain.records.lines import Line, parsed
from toolchain.records.tables import Row, row

BLOCK = 8 << 20
"""Bytes of a block with a digest of its own."""

DIGEST_SIZE = hashlib.sha256().digest_size

_SEARCHED = 1 << 16
_THREADS = 2  # for digests: they are faster than most disks


class Source:
    """A file of records.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.status = os.fstat(self._handle)
        self.size = self.status.st_size

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)

    @property
    def path_of_handle(self) -> str:
        """A path by which another process opens the same file, even if it was replaced."""
        return f"/proc/{os.getpid()}/fd/{self._handle}"

    @property
    def stamp(self) -> str:
        """What identifies an unchanged file. No program can set the time of its last status change."""
        status = self.status
        return json.dumps([status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns])

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes between two offsets, or fewer if the file has been truncated."""
        blocks = []
        while start < stop and (block := os.pread(self._handle, stop - start, start)):
            blocks.append(block)
            start += len(block)
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def digests(self, start: int, stop: int) -> bytes:
        """Return the SHA-256 of each block between two offsets."""
        with ThreadPoolExecutor(_THREADS) as pool:
            digests = pool.map(
                lambda first: hashlib.sha256(self.read(first, min(first + BLOCK, stop))).digest(),
                range(start, stop, BLOCK),
            )
            return b"".join(digests)

    def chunks(self, start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
        """Divide complete lines between two offsets into chunks of about `size` bytes; yield the bounds of each."""
        length = size
        while start < stop:
            end = self.line_end(start, min(start + length, stop))
            if end > start:
                yield start, end
                start, length = end, size
            elif start + length < stop:  # a line is longer than a chunk
                length *= 2
            else:  # the file has been truncated
                return

    def line_end(self, start: int, stop: int) -> int:
        """Return where the last complete line between two offsets ends; `start` if there is none."""
        while stop > start:
            first = max(start, stop - _SEARCHED)
            newline = self.read(first, stop).rfind(b"\n")
            if newline >= 0:
                return first + newline + 1
            stop = first
        return start

    def rows(self, start: int, stop: int, number: int) -> list[Row]:
        """Read complete lines.

        Args:
            start: Where the first line begins.
            stop: Where the last line ends; its newline may be missing.
            number: The number of the first line in the file, from 1.

        Raises:
            InputError: A line is damaged.
        """
        rows: list[Row] = []
        for line in self.read(start, stop).removesuffix(b"\n").split(b"\n"):
            rows.append(row(parsed(line, number + len(rows), self.where), start, len(line), zlib.crc32(line)))
            start += len(line) + 1
        return rows

    def line(self, at: int, size: int, checksum: int) -> Line:
        """Read a line.

        Raises:
            InputError: The line has changed since its row was made.
        """
        line = self.read(at, at + size)
        if zlib.crc32(line) != checksum:
            raise InputError(
                f"{self.where} was modified while it was read",
                details="a line was removed or modified",
                hint="run the command again; modify records only with `toolchain records`, which waits for other users",
            )
        return parsed(line, 1, self.where)
