"""The index of a large file of records: queries on millions of records do not load them.

The file has the truth. The index is made from it, is stored beside it as a hidden file, and may be removed at any time;
`store` says when its rows are valid, and `snapshot` where it is. A record is read from its line when it is needed, and
must agree with the index.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from toolchain.records.index import snapshot
from toolchain.records.index.answers import Indexed
from toolchain.records.index.source import Source
from toolchain.records.index.store import Store, Tell

LEAST = 16 << 20
"""Least size in bytes of a file with an index: smaller ones are read in a fraction of a second."""

__all__ = ["LEAST", "Indexed", "Tell", "open_index", "remove"]

remove = snapshot.remove


def open_index(path: Path, tell: Tell) -> Indexed:
    """Open the index of a file of records, which is created or updated.

    Raises:
        InputError: A line is damaged.
        OSError: The file does not exist.
    """
    source = Source(path)
    try:
        store = _update(path, Store(source, snapshot.load(path)), tell)
    except sqlite3.Error:  # the snapshot has other tables, or is too large to be extended
        store = _update(path, Store(source), tell)
    return Indexed(store, store.runs())


def _update(path: Path, store: Store, tell: Tell) -> Store:
    if store.is_outdated():
        store.catch_up(tell)
        snapshot.save(path, store.database)
    store.add_tail()
    return store
