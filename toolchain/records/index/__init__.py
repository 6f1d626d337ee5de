"""The index of a large file of records: what is asked of a million of them is answered without holding them.

The lines are the truth. The index is made of them, is kept beside them under a hidden name, and may be removed at any
time; see `store` for what of it is believed, and `snapshot` for where it is. A record is read from its line when it is
asked for, and must say there what the index says of it.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from toolchain.records.index import snapshot
from toolchain.records.index.answers import Indexed
from toolchain.records.index.source import Source
from toolchain.records.index.store import Store, Tell

LEAST = 16 << 20
"""Bytes from which on a file has an index: smaller ones are read in a fraction of a second."""

__all__ = ["LEAST", "Indexed", "Tell", "opened", "remove"]

remove = snapshot.remove


def opened(path: Path, tell: Tell) -> Indexed:
    """Open a file of records by its index, which is made or brought up to date.

    Args:
        path: The file.
        tell: Called with steps where that takes some time.

    Raises:
        InputError: A line is damaged.
        OSError: There is no such file.
    """
    source = Source(path)
    try:
        store = _current(path, Store(source, snapshot.load(path)), tell)
    except sqlite3.Error:  # of other tables, or too large to be extended
        store = _current(path, Store(source), tell)
    return Indexed(store, store.begun())


def _current(path: Path, store: Store, tell: Tell) -> Store:
    if store.is_outdated():
        store.catch_up(tell)
        snapshot.save(path, store.database)
    store.add_tail()
    return store
