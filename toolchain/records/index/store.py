"""The rows of a file, in a database in memory, and which bytes of the file they are of.

The file is known in chunks of whole lines, each by the digest of its bytes. So rows are never believed of bytes that
they were not read from: those of the first chunk that differs and of all behind it are dropped, and what is there
instead is read. What was appended is the same case: all chunks fit, and there is more.
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
from toolchain.records.catalog import Begun
from toolchain.records.index import crew
from toolchain.records.index.rows import Reader, Rows, digest
from toolchain.records.index.source import Source
from toolchain.records.lines import Line, Record, Start, Workload, is_torn, parsed

_CHUNK = 8 << 20
_QUIET_S = 2.0
_AT_ONCE = 2  # chunks whose digests are made: they outrun most disks
_TOLD = 64 << 20  # bytes whose reading is told of, as it takes some time

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
        database: Rows that were there before, of this file or of what it was; None for none.
    """

    def __init__(self, source: Source, database: sqlite3.Connection | None = None) -> None:
        self.source = source
        self.reader = Reader(source)
        self.database = database or _empty()
        self.database.execute("PRAGMA temp_store = MEMORY")  # a full disk stops nobody from asking
        self.texts: dict[int, str] = dict(self.database.execute("SELECT id, text FROM word"))
        self.words = {text: number for number, text in self.texts.items()}

    def is_outdated(self) -> bool:
        """Whether somebody has touched the file since the rows were saved, or may have."""
        stamp = self.database.execute("SELECT text FROM stamp").fetchone()
        return stamp is None or stamp[0] != _stamp(self.source.status)

    def catch_up(self, tell: Tell) -> None:
        """Drop the rows of what is no more in the file, and add those of what is new.

        Args:
            tell: Called with steps where that takes some time.

        Raises:
            InputError: A line is damaged.
        """
        start = self._fitting()
        for table, column in _STARTS.items():
            self.database.execute(f"DELETE FROM {table} WHERE {column} >= ?", (start,))  # noqa: S608 - names of ours
        size = self.source.status.st_size
        with contextlib.closing(self._read(start)) as chunks:
            for first, stop, rows in chunks:
                self._add(first, stop, rows or self.reader.rows(first, stop, self._next_line()))
                if size - start > _TOLD:
                    tell(Step(f"indexing {self.source.where}", stop // 10**6, size // 10**6, "MB"))
        self.database.execute(_ORDER)
        self.database.execute("DELETE FROM stamp")
        if not _is_fresh(self.source.status):
            self.database.execute("INSERT INTO stamp VALUES (?)", (_stamp(self.source.status),))
        self.database.commit()

    def _read(self, start: int) -> Generator[tuple[int, int, Rows | None], None, None]:
        """Yield where each chunk behind a place begins and ends, and its rows where others have read it."""
        chunks = self.source.chunks(start, _CHUNK)
        with contextlib.ExitStack() as stack:
            workers = None
            if self.source.status.st_size - start >= crew.LEAST and len(os.sched_getaffinity(0)) > 1:
                with contextlib.suppress(OSError):  # they cannot be started; alone it takes longer
                    workers = stack.enter_context(crew.hired(self.source))
            yield from workers.rows(chunks) if workers else ((first, stop, None) for first, stop in chunks)

    def _fitting(self) -> int:
        """Return up to where the rows are of what is in the file, the last chunk left out if it has grown."""
        known = self.database.execute("SELECT start, stop, digest FROM chunk ORDER BY start").fetchall()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            same = [*pool.map(self._is_same, known), False]
        fit = known[: same.index(False)]
        if len(fit) == len(known) and fit:  # or there would be a chunk for each few lines that are appended
            fit.pop()
        return int(fit[-1][1]) if fit else 0

    def _is_same(self, chunk: tuple[int, int, str]) -> bool:
        start, stop, known = chunk
        return stop <= self.source.status.st_size and digest(self.source.read(start, stop)) == known

    def begun(self) -> dict[str, Begun]:
        """Return where each run began, the last time that it did."""
        found: dict[str, Begun] = {}
        for at, size, place in self.database.execute("SELECT at, size, place FROM beginning ORDER BY at"):
            item = self.line(at, size)
            if not isinstance(item, Start):
                raise self.changed()
            found[item.run] = Begun(item, place)
        return found

    def workloads(self) -> dict[str, Workload]:
        """Return the kernels by their hash; the first line of each counts."""
        found: dict[str, Workload] = {}
        for at, size in self.database.execute("SELECT min(at), size FROM kernel GROUP BY workload ORDER BY min(at)"):
            item = self.line(at, size)
            if not isinstance(item, Workload):
                raise self.changed()
            found[item.workload] = item
        return found

    def record(self, at: int, size: int, *facts: Any) -> Record:
        """Read a record again, of which the index says this.

        Raises:
            InputError: It is another one by now.
        """
        item = self.line(at, size)
        if not isinstance(item, Record):
            raise self.changed()
        found = self.reader.facts(item)
        if (*map(self.words.get, found[:4]), *found[4:]) != facts:
            raise self.changed()
        return item

    def line(self, at: int, size: int) -> Line:
        """Read a line again.

        Raises:
            InputError: It is another one by now.
        """
        try:
            return parsed(self.source.read(at, at + size), 1, self.source.where)
        except InputError as fault:
            raise self.changed() from fault

    def changed(self) -> InputError:
        """Describe that a line is not what it was when the index was made."""
        return InputError(
            f"{self.source.where} was modified while it was read",
            details="a line was removed or modified",
            hint="run the command again; modify records only with `toolchain records`, which waits for other users",
        )

    def add_tail(self) -> None:
        """Add a last line without its newline, unless it is torn; it is no part of what is saved.

        Raises:
            InputError: It is damaged.
        """
        (start,) = self.database.execute("SELECT coalesce(max(stop), 0) FROM chunk").fetchone()
        stop = self.source.status.st_size
        if start < stop and not is_torn(self.source.read(start, stop)):
            self._add(start, stop, self.reader.rows(start, stop, self._next_line()))

    def _next_line(self) -> int:
        """Return the number of the line behind the last chunk."""
        found = self.database.execute("SELECT next_line FROM chunk ORDER BY start DESC LIMIT 1").fetchone()
        return found[0] if found else 1

    def _add(self, start: int, stop: int, rows: Rows) -> None:
        number, words = self._next_line() + rows.lines, [self._word(text) for text in rows.texts]
        (place,) = self.database.execute("SELECT coalesce(max(place) + 1, 0) FROM trial").fetchone()
        trials = (
            (number, at, size, words[key], words[workload], words[run], words[cause], *facts)
            for number, (at, size, key, workload, run, cause, *facts) in enumerate(rows.trials, place)
        )
        kernels = ((at, size, words[workload]) for at, size, workload in rows.kernels)
        starts = ((at, size, place + before) for at, size, before in rows.starts)
        self.database.execute("INSERT INTO chunk VALUES (?, ?, ?, ?)", (start, stop, number, rows.digest))
        self.database.executemany("INSERT INTO trial VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", trials)
        self.database.executemany("INSERT INTO kernel VALUES (?, ?, ?)", kernels)
        self.database.executemany("INSERT INTO beginning VALUES (?, ?, ?)", starts)
        self.database.commit()

    def _word(self, text: str) -> int:
        """Return the number that stands for a text."""
        number = self.words.get(text)
        if number is None:
            number = self.words[text] = len(self.words)
            self.texts[number] = text
            self.database.execute("INSERT INTO word VALUES (?, ?)", (number, text))
        return number


def _empty() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:", check_same_thread=False)
    made.execute("PRAGMA journal_mode = OFF")  # rows that are lost halfway are lost with their database
    made.executescript(_TABLES)
    return made


def _stamp(status: os.stat_result) -> str:
    """Return what tells a file that nobody has touched: the time of its last change can be set by nobody."""
    return json.dumps([status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns])


def _is_fresh(status: os.stat_result) -> bool:
    """Whether a file was changed just now, so that its time of change may not tell it from the next change."""
    return time.time() - status.st_ctime < _QUIET_S
