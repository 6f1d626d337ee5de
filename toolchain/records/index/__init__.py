"""The index of a large file of records: queries on millions of records do not load them.

The file has the truth. The index is made from it, is stored beside it as a hidden file, and may be removed at any time:
it is valid for a file that begins with the bytes that it was made from, as their digests say, and new lines after these
are added. A record is read from its line when it is needed.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Generator
from pathlib import Path

from toolchain.progress import Step
from toolchain.records.index import crew, snapshot
from toolchain.records.index.source import BLOCK, DIGEST_SIZE, Source
from toolchain.records.lines import is_torn
from toolchain.records.tables import Row, Tables

LEAST = 16 << 20
"""Least size in bytes of a file with an index: smaller ones are read in a fraction of a second."""

_CHUNK = 8 << 20
_QUIET_S = 2.0
_REPORTED = 64 << 20  # bytes whose reading takes so long that its progress is reported

__all__ = ["LEAST", "open_index", "remove"]

remove = snapshot.remove


def open_index(path: Path, tell: Callable[[str], None]) -> Tables:
    """Return the tables of a file of records, from its index, which is created or updated.

    Raises:
        InputError: A line is damaged.
        OSError: The file does not exist.
    """
    source = Source(path)
    try:
        tables, stop, lines = _update(path, source, Tables(source.line, snapshot.load(path)), tell)
    except sqlite3.Error:  # the snapshot has other tables, or is too large to be extended
        tables, stop, lines = _update(path, source, Tables(source.line), tell)
    # A last line without its newline is not saved: it may still grow.
    if stop < source.size and not is_torn(source.read(stop, source.size)):
        tables.add(source.rows(stop, source.size, lines + 1))
    return tables


def _update(path: Path, source: Source, tables: Tables, tell: Callable[[str], None]) -> tuple[Tables, int, int]:
    """Add the lines that the file has and the tables do not; return where the last one ends, and their number."""
    stamp, stop, lines, digests = tables.state
    if stamp == source.stamp:
        return tables, stop, lines
    if digests != source.digests(0, stop):
        tables, stop, lines, digests = Tables(source.line), 0, 0, b""
    end = source.line_end(stop, source.size)
    # Before the lines are read: if the file changes in between, the next reader sees another digest.
    unchanged = stop // BLOCK
    digests = digests[: unchanged * DIGEST_SIZE] + source.digests(unchanged * BLOCK, end)
    with contextlib.closing(_read(source, stop, end)) as chunks:
        for first, last, rows in chunks:
            known = rows or source.rows(first, last, lines + 1)
            tables.add(known)
            lines += len(known)
            if end - stop > _REPORTED:
                tell(Step(f"indexing {source.where}", last // 10**6, source.size // 10**6, "MB"))
    tables.create_index()
    # A file that was changed just now may be changed again at the same time: without a stamp, digests are compared.
    is_quiet = time.time() - source.status.st_ctime >= _QUIET_S
    tables.state = source.stamp if is_quiet else "", end, lines, digests
    snapshot.save(path, tables.database)
    return tables, end, lines


def _read(source: Source, start: int, stop: int) -> Generator[tuple[int, int, list[Row] | None], None, None]:
    """Yield where each chunk between two offsets begins and ends, and its rows if a worker has read it."""
    chunks = source.chunks(start, stop, _CHUNK)
    with contextlib.ExitStack() as stack:
        workers = None
        if stop - start >= crew.LEAST and len(os.sched_getaffinity(0)) > 1:
            with contextlib.suppress(OSError):  # without them it only takes longer
                workers = stack.enter_context(crew.start_crew(source))
        yield from workers.rows(chunks) if workers else ((first, last, None) for first, last in chunks)
