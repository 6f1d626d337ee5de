"""Lines become rows: what is asked of many records at once, and where the line of each stands."""

from __future__ import annotations

import hashlib
import json
import marshal
import zlib
from dataclasses import astuple, dataclass, field
from typing import Any

from toolchain.records.index.source import Source
from toolchain.records.lines import EARLIER, Key, Record, Workload, parsed

FINAL, VERDICT, POSSIBLE, FIRST_SCHEMA = 1, 2, 4, 8
"""What the flags of a row say of its record."""

_PLAIN = 2  # a form of `marshal` in which equal values are equal bytes, whatever else refers to them

Facts = tuple[str, str, str, str, int, int, float, float | None]
"""Of one record: key, workload, run, cause, flags, a sum of its candidate, when it was measured, and its latency."""


@dataclass
class Rows:
    """What a chunk of a file says.

    Attributes:
        digest: SHA-256 of its bytes.
        lines: How many there are.
        texts: The texts of the facts, each once.
        trials: Where each record's line begins in the file, its bytes without the newline, and its facts; a text is
            given by its place in `texts`.
        kernels: The same of each workload, with its hash.
        starts: The same of each beginning of a run, with the number of the chunk's records before it.
    """

    digest: str
    lines: int = 0
    texts: list[str] = field(default_factory=list)
    trials: list[tuple[Any, ...]] = field(default_factory=list)
    kernels: list[tuple[int, int, int]] = field(default_factory=list)
    starts: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Reader:
    """Reads lines, and remembers the keys that it has met: making one takes as long as reading a line.

    Attributes:
        source: The file.
    """

    source: Source
    _keys: dict[bytes, str] = field(default_factory=dict)

    def rows(self, start: int, stop: int, number: int) -> Rows:
        """Read whole lines.

        Args:
            start: Where the first one begins.
            stop: Where the last one ends; it may lack its newline.
            number: The first one's number in the file, from 1.

        Raises:
            InputError: One of them is damaged.
        """
        block = self.source.read(start, stop)
        found, places = Rows(digest(block)), _Places()
        for line in block.removesuffix(b"\n").split(b"\n"):
            item, size = parsed(line, number + found.lines, self.source.where), len(line)
            if isinstance(item, Record):
                key, workload, run, cause, *facts = self.facts(item)
                found.trials.append((start, size, places[key], places[workload], places[run], places[cause], *facts))
            elif isinstance(item, Workload):
                found.kernels.append((start, size, places[item.workload]))
            else:
                found.starts.append((start, size, len(found.trials)))
            found.lines += 1
            start += size + 1
        found.texts.extend(places)
        return found

    def facts(self, record: Record) -> Facts:
        """Return what the index says of a record."""
        flags = (
            (FINAL if record.is_final else 0)
            | (VERDICT if record.verdict else 0)
            | (POSSIBLE if record.is_possible else 0)
            | (FIRST_SCHEMA if record.schema == EARLIER else 0)
        )
        latency_s = record.latency_s if record.samples_s else None
        candidate = candidate_sum(record.candidate)
        return self._key(record), record.workload, record.run, record.cause, flags, candidate, record.time, latency_s

    def _key(self, record: Record) -> str:
        parts: Any = record.target, record.tvm, record.emulated, record.modelled, record.threads, record.options
        known = marshal.dumps(parts, _PLAIN)
        if known not in self._keys:
            self._keys[known] = key_text(record.key)
        return self._keys[known]


class _Places(dict[str, int]):
    """The place of each text among those that were asked for."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return self[text]


def digest(block: bytes) -> str:
    """Return what a chunk is known by."""
    return hashlib.sha256(block).hexdigest()


def key_text(key: Key) -> str:
    """Return a key as text, from which `key_of` makes it again."""
    return json.dumps(astuple(key), ensure_ascii=False)


def key_of(text: str) -> Key:
    """Return the key that this is the text of."""
    return Key(*json.loads(text))


def candidate_sum(candidate: str) -> int:
    """Return what a candidate is looked for by: its hash itself would be a fifth of the index."""
    return zlib.crc32(candidate.encode())
