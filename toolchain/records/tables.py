"""The tables of records in SQLite: the facts of each line that queries need, and where the line is."""

from __future__ import annotations

import functools
import json
import marshal
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from toolchain.records.lines import Key, Line, Record

# Texts such as hashes repeat very often, so rows contain their numbers in the table `word`.
_TABLES = """
CREATE TABLE state (stamp TEXT, stop INTEGER, lines INTEGER, digests BLOB);
CREATE TABLE word (id INTEGER PRIMARY KEY, text TEXT);
CREATE TABLE line (at INTEGER PRIMARY KEY, size INTEGER, checksum INTEGER, kind TEXT, position INTEGER);
CREATE TABLE trial (
    position INTEGER PRIMARY KEY, at INTEGER, size INTEGER, checksum INTEGER,
    key INTEGER, workload INTEGER, run INTEGER, cause INTEGER, board INTEGER,
    final INTEGER, decision INTEGER, possible INTEGER, schema INTEGER, candidate INTEGER, time REAL, latency REAL
);
"""
_INDEX = "CREATE INDEX IF NOT EXISTS fastest ON trial (workload, key, latency)"
_TEXTS = 5  # of a record's facts, the first ones are texts
_VERSION = 2  # of `marshal`; later ones encode references, so that equal values may have different bytes

Row = tuple[Any, ...]
"""Of a line: its kind, offset, size without the newline, and checksum; of a record also its facts."""


def row(item: Line, at: int, size: int = 0, checksum: int = 0) -> Row:
    """Return the row of a line; the facts of a record are in the order of the columns of `trial`."""
    if not isinstance(item, Record):
        return item.kind, at, size, checksum
    fields: Any = item.target, item.tvm, item.emulated, item.modelled, item.threads, item.options
    return (
        *(item.kind, at, size, checksum),
        *(_key_text(marshal.dumps(fields, _VERSION)), item.workload, item.run, item.cause, item.board),
        *(item.is_final, bool(item.verdict), item.is_possible, item.schema, candidate_sum(item.candidate)),
        *(item.time, item.latency_s if item.samples_s else None),
    )


@functools.lru_cache(maxsize=1024)
def _key_text(fields: bytes) -> str:
    """Return the key of some fields as text. To make a key takes as long as to read a line."""
    target, tvm, emulated, modelled, threads, options = marshal.loads(fields)  # noqa: S302 - written by `row`
    key = Key.of(target, emulated=emulated, tvm=tvm, modelled=modelled, threads=threads, options=options)
    return key_text(key)


def key_text(key: Key) -> str:
    """Return a key as text, which `key_of` parses."""
    return json.dumps(list(vars(key).values()), ensure_ascii=False)


def key_of(text: str) -> Key:
    """Parse a key from its text."""
    return Key(*json.loads(text))


def candidate_sum(candidate: str) -> int:
    """Return a short checksum of a candidate: its whole hash would take a fifth of the index."""
    return zlib.crc32(candidate.encode())


class Tables:
    """A database in memory.

    Args:
        read: Reads a line; called with its offset, size and checksum.
        database: Tables of earlier lines; None if there are none.
    """

    def __init__(self, read: Callable[[int, int, int], Line], database: sqlite3.Connection | None = None) -> None:
        self.read = read
        self.database = database or _empty()
        self.database.execute("PRAGMA temp_store = MEMORY")  # so that queries work with a full disk
        self.texts = [text for (text,) in self.database.execute("SELECT text FROM word ORDER BY id")]
        self.numbers = {text: number for number, text in enumerate(self.texts)}

    def add(self, rows: Iterable[Row]) -> None:
        trials: list[Row] = []
        lines: list[Row] = []
        (first,) = self.database.execute("SELECT coalesce(max(position) + 1, 0) FROM trial").fetchone()
        for kind, at, size, checksum, *facts in rows:
            position = first + len(trials)
            if kind == "trial":
                texts = map(self._number, facts[:_TEXTS])
                trials.append((position, at, size, checksum, *texts, *facts[_TEXTS:]))
            else:
                lines.append((at, size, checksum, kind, position))
        self.database.executemany("INSERT INTO line VALUES (?, ?, ?, ?, ?)", lines)
        self.database.executemany("INSERT INTO trial VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", trials)
        self.database.commit()

    @property
    def state(self) -> tuple[str, int, int, bytes]:
        """Of the indexed part of a file: its stamp, where its last line ends, its lines, and its blocks' digests."""
        state: tuple[str, int, int, bytes] | None = self.database.execute("SELECT * FROM state").fetchone()
        return state or ("", 0, 0, b"")

    @state.setter
    def state(self, state: tuple[str, int, int, bytes]) -> None:
        self.database.execute("DELETE FROM state")
        self.database.execute("INSERT INTO state VALUES (?, ?, ?, ?)", state)
        self.database.commit()

    def create_index(self) -> None:
        """Create the index of trials, if there is none: after the rows, since that is faster than to update it."""
        self.database.execute(_INDEX)

    def lines(self, kind: str) -> Iterator[tuple[Line, int]]:
        """Yield the lines of a kind, except trials, each with the number of trials before it."""
        rows = self.database.execute(
            "SELECT at, size, checksum, position FROM line WHERE kind = ? ORDER BY at", (kind,)
        )
        return ((self.read(*row), position) for *row, position in rows)

    def is_in(self, column: str, texts: Iterable[str]) -> str:
        """Return the SQL condition that a column is one of some texts. Only numbers of texts are ever in a query."""
        numbers = sorted(self.numbers[text] for text in texts if text in self.numbers)
        return f"{column} IN ({', '.join(map(str, numbers))})"

    def _number(self, text: str) -> int:
        """Return the number of a text, which is added if it is new."""
        number = self.numbers.get(text)
        if number is None:
            number = self.numbers[text] = len(self.texts)
            self.texts.append(text)
            self.database.execute("INSERT INTO word VALUES (?, ?)", (number, text))
        return number


def _empty() -> sqlite3.Connection:
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.execute("PRAGMA journal_mode = OFF")  # a crash loses the database in memory anyway
    database.executescript(_TABLES)
    return database
