"""Converts lines to rows of the index: the facts that queries need, and the position of each line."""

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
"""Bits of the flags of a row."""

_VERSION = 2  # of `marshal`; later ones encode references, so that equal values may have different bytes

Facts = tuple[str, str, str, str, int, int, float, float | None]
"""Of one record: key, workload, run, cause, flags, checksum of the candidate, time and latency."""


@dataclass
class Rows:
    """The rows of a chunk of a file.

    Attributes:
        digest: SHA-256 of its bytes.
        lines: Number of lines.
        texts: The texts of the facts, each once.
        trials: Of each record: the offset of its line in the file, its size without the newline, and its facts, with
            texts as indices into `texts`.
        kernels: Of each workload: offset, size, and its hash as an index into `texts`.
        starts: Of each beginning of a run: offset, size, and the number of the chunk's records before it.
    """

    digest: str
    lines: int = 0
    texts: list[str] = field(default_factory=list)
    trials: list[tuple[Any, ...]] = field(default_factory=list)
    kernels: list[tuple[int, int, int]] = field(default_factory=list)
    starts: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Reader:
    """Reads lines. It caches the keys: to make a key takes as long as to read a line.

    Attributes:
        source: The file.
    """

    source: Source
    _keys: dict[bytes, str] = field(default_factory=dict)

    def rows(self, start: int, stop: int, number: int) -> Rows:
        """Read complete lines.

        Args:
            start: Where the first line begins.
            stop: Where the last line ends; its newline may be missing.
            number: The number of the first line in the file, from 1.

        Raises:
            InputError: A line is damaged.
        """
        block = self.source.read(start, stop)
        rows, indices = Rows(digest(block)), _Indices()
        for line in block.removesuffix(b"\n").split(b"\n"):
            item, size = parsed(line, number + rows.lines, self.source.where), len(line)
            if isinstance(item, Record):
                key, workload, run, cause, *facts = self.facts(item)
                rows.trials.append((start, size, indices[key], indices[workload], indices[run], indices[cause], *facts))
            elif isinstance(item, Workload):
                rows.kernels.append((start, size, indices[item.workload]))
            else:
                rows.starts.append((start, size, len(rows.trials)))
            rows.lines += 1
            start += size + 1
        rows.texts.extend(indices)
        return rows

    def facts(self, record: Record) -> Facts:
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
        fields: Any = record.target, record.tvm, record.emulated, record.modelled, record.threads, record.options
        # Nested values cannot be dictionary keys; marshalled bytes can.
        data = marshal.dumps(fields, _VERSION)
        if data not in self._keys:
            self._keys[data] = key_text(record.key)
        return self._keys[data]


class _Indices(dict[str, int]):
    """Numbers texts in the order of their first use."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return self[text]


def digest(block: bytes) -> str:
    return hashlib.sha256(block).hexdigest()


def key_text(key: Key) -> str:
    """Return a key as text, which `key_of` parses."""
    return json.dumps(astuple(key), ensure_ascii=False)


def key_of(text: str) -> Key:
    """Parse a key from its text."""
    return Key(*json.loads(text))


def candidate_sum(candidate: str) -> int:
    """Return a short checksum of a candidate: its whole hash would take a fifth of the index."""
    return zlib.crc32(candidate.encode())
