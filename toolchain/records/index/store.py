"""The rows of a file in a database in memory, with the digests of the bytes that they were read from.

The file is divided into chunks of complete lines, each with a digest. The rows of the first chunk that differs and of
all chunks after it are dropped, and the file is read again from there. Appended lines are the same case: all chunks
agree, and there are more bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from toolchain.errors import InputError
from toolchain.progress import Step
from toolchain.records.catalog import RunStart
from toolchain.records.index import crew
from toolchain.records.index.rows import Reader, Rows, digest
from toolchain.records.index.source import Source
from toolchain.records.lines import Line, Record, Start, Workload, is_torn, parsed

_CHUNK = 8 << 20
_QUIET_S = 2.0
_AT_ONCE = 2  # threads for digests: they are faster than most disks
_REPORTED = 64 << 20  # bytes whose reading takes so long that its progress is reported

# Texts such as hashes repeat very often, so rows contain their numbers in the table `word`.
_TABLES = """
CREATE TABLE stamp (text TEXT);
CREATE TABLE chunk (start INTEGER PRIMARY KEY, stop INTEGER, next_line INTEGER, digest TEXT);
CREATE TABLE word (id INTEGER PRIMARY KEY, text TEXT);
CREATE TABLE kernel (at INTEGER PRIMARY KEY, size INTEGER, workload INTEGER);
CREATE TABLE beginning (at INTEGER PRIMARY KEY, size INTEGER, place INTEGER);
CREATE TABLE trial (
    place INTEGER PRIMARY KEY, at INTEGER, size INTEGER, key INTEGER, workload INTEGER, run INTEGER, cause INTEGER,
    flags INTEGER, candidate INTEGER, time REAL, latency REAL
);
"""
_ORDER = "CREATE INDEX IF NOT EXISTS fastest ON trial (workload, key, latency)"
_STARTS = {"chunk": "start", "kernel": "at", "beginning": "at", "trial": "at"}

Tell = Callable[[str], None]


class Store:
    """The rows of a file.

    Args:
        source: The file.
        database: Rows of an earlier version of the file; None if there are none.
    """

    def __init__(self, source: Source, database: sqlite3.Connection | None = None) -> None:
        self.source = source
        self.reader = Reader(source)
        self.database = database or _empty()
        self.database.execute("PRAGMA temp_store = MEMORY")  # so that queries work with a full disk
        self.texts: dict[int, str] = dict(self.database.execute("SELECT id, text FROM word"))
        self.words = {text: number for number, text in self.texts.items()}

    def is_outdated(self) -> bool:
        """Whether the file may have changed since the rows were saved."""
        stamp = self.database.execute("SELECT text FROM stamp").fetchone()
        return stamp is None or stamp[0] != _stamp(self.source.status)

    def catch_up(self, tell: Tell) -> None:
        """Drop the rows of lines that are no longer in the file, and add those of new lines.

        Raises:
            InputError: A line is damaged.
        """
        start = self._unchanged_until()
        for table, column in _STARTS.items():
            self.database.execute(f"DELETE FROM {table} WHERE {column} >= ?", (start,))  # noqa: S608 - constants
        size = self.source.status.st_size
        with contextlib.closing(self._read(start)) as chunks:
            for first, stop, rows in chunks:
                self._add(first, stop, rows or self.reader.rows(first, stop, self._next_line()))
                if size - start > _REPORTED:
                    tell(Step(f"indexing {self.source.where}", stop // 10**6, size // 10**6, "MB"))
        # After the rows: an index on a filled table is made faster than it is kept up to date.
        self.database.execute(_ORDER)
        self.database.execute("DELETE FROM stamp")
        # Without a stamp, the next reader compares the digests.
        if not _is_fresh(self.source.status):
            self.database.execute("INSERT INTO stamp VALUES (?)", (_stamp(self.source.status),))
        self.database.commit()

    def _read(self, start: int) -> Generator[tuple[int, int, Rows | None], None, None]:
        """Yield where each chunk after an offset begins and ends, and its rows if a worker has read it."""
        chunks = self.source.chunks(start, _CHUNK)
        with contextlib.ExitStack() as stack:
            workers = None
            if self.source.status.st_size - start >= crew.LEAST and len(os.sched_getaffinity(0)) > 1:
                with contextlib.suppress(OSError):  # without them it only takes longer
                    workers = stack.enter_context(crew.start_crew(self.source))
            yield from workers.rows(chunks) if workers else ((first, stop, None) for first, stop in chunks)

    def _unchanged_until(self) -> int:
        """Return the offset up to which the rows agree with the file; the last chunk is read again if it may grow."""
        chunks = self.database.execute("SELECT start, stop, digest FROM chunk ORDER BY start").fetchall()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            # Up to the first chunk that differs.
            same = [*pool.map(self._is_same, chunks), False]
        fit = chunks[: same.index(False)]
        if len(fit) == len(chunks) and fit:  # extends the last chunk instead of adding many small ones
            fit.pop()
        return int(fit[-1][1]) if fit else 0

    def _is_same(self, chunk: tuple[int, int, str]) -> bool:
        start, stop, expected = chunk
        return stop <= self.source.status.st_size and digest(self.source.read(start, stop)) == expected

    def runs(self) -> dict[str, RunStart]:
        starts: dict[str, RunStart] = {}
        for offset, size, index in self.database.execute("SELECT at, size, place FROM beginning ORDER BY at"):
            item = self.line(offset, size)
            if not isinstance(item, Start):
                raise self.changed()
            starts[item.run] = RunStart(item, index)
        return starts

    def workloads(self) -> dict[str, Workload]:
        """Return the kernels by their hash; the first line of each counts."""
        lines: dict[str, Workload] = {}
        for offset, size in self.database.execute(
            "SELECT min(at), size FROM kernel GROUP BY workload ORDER BY min(at)"
        ):
            item = self.line(offset, size)
            if not isinstance(item, Workload):
                raise self.changed()
            lines[item.workload] = item
        return lines

    def record(self, offset: int, size: int, *facts: Any) -> Record:
        """Read a record, and check that it agrees with the facts of the index.

        Raises:
            InputError: The line has changed.
        """
        item = self.line(offset, size)
        if not isinstance(item, Record):
            raise self.changed()
        facts_of = self.reader.facts(item)
        if (*map(self.words.get, facts_of[:4]), *facts_of[4:]) != facts:
            raise self.changed()
        return item

    def line(self, offset: int, size: int) -> Line:
        """Read a line.

        Raises:
            InputError: The line has changed.
        """
        try:
            return parsed(self.source.read(offset, offset + size), 1, self.source.where)
        except InputError as fault:
            raise self.changed() from fault

    def changed(self) -> InputError:
        """Return the error for a line that has changed since the index was made."""
        return InputError(
            f"{self.source.where} was modified while it was read",
            details="a line was removed or modified",
            hint="run the command again; modify records only with `toolchain records`, which waits for other users",
        )

    def add_tail(self) -> None:
        """Add a last line without its newline, unless it is torn. It is not saved with the snapshot.

        Raises:
            InputError: It is damaged.
        """
        (start,) = self.database.execute("SELECT coalesce(max(stop), 0) FROM chunk").fetchone()
        stop = self.source.status.st_size
        if start < stop and not is_torn(self.source.read(start, stop)):
            self._add(start, stop, self.reader.rows(start, stop, self._next_line()))

    def _next_line(self) -> int:
        row = self.database.execute("SELECT next_line FROM chunk ORDER BY start DESC LIMIT 1").fetchone()
        return row[0] if row else 1

    def _add(self, start: int, stop: int, rows: Rows) -> None:
        number, word_ids = self._next_line() + rows.lines, [self._word(text) for text in rows.texts]
        (first,) = self.database.execute("SELECT coalesce(max(place) + 1, 0) FROM trial").fetchone()
        trials = (
            (number, offset, size, word_ids[key], word_ids[workload], word_ids[run], word_ids[cause], *facts)
            for number, (offset, size, key, workload, run, cause, *facts) in enumerate(rows.trials, first)
        )
        kernels = ((offset, size, word_ids[workload]) for offset, size, workload in rows.kernels)
        starts = ((offset, size, first + before) for offset, size, before in rows.starts)
        self.database.execute("INSERT INTO chunk VALUES (?, ?, ?, ?)", (start, stop, number, rows.digest))
        self.database.executemany("INSERT INTO trial VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", trials)
        self.database.executemany("INSERT INTO kernel VALUES (?, ?, ?)", kernels)
        self.database.executemany("INSERT INTO beginning VALUES (?, ?, ?)", starts)
        self.database.commit()

    def _word(self, text: str) -> int:
        """Return the number of a text, which is added if it is new."""
        number = self.words.get(text)
        if number is None:
            number = self.words[text] = len(self.words)
            self.texts[number] = text
            self.database.execute("INSERT INTO word VALUES (?, ?)", (number, text))
        return number


def _empty() -> sqlite3.Connection:
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.execute("PRAGMA journal_mode = OFF")  # a crash loses the database in memory anyway
    database.executescript(_TABLES)
    return database


def _stamp(status: os.stat_result) -> str:
    """Return what identifies an unchanged file. No program can set the time of its last status change."""
    return json.dumps([status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns])


def _is_fresh(status: os.stat_result) -> bool:
    """Whether a file was changed so recently that the next change might have the same time."""
    return time.time() - status.st_ctime < _QUIET_S
