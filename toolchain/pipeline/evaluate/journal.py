"""The scores of one side so far, in a file of the cache, so that an interrupted evaluation continues.

Each line is a score as JSON. The file's name is the digest of all that decides the scores.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toolchain import files
from toolchain.pipeline.evaluate.metrics import Score

_FOLDER = "evaluations"
_LARGEST = 1 << 30  # bytes


@dataclass(frozen=True)
class Journal:
    path: Path

    @classmethod
    def of(cls, *key: Any) -> Journal:
        folder = files.check_cache() / _FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        return cls(folder / f"{files.sha256_bytes(files.canonical_json(list(key)))}.jsonl")

    def read(self, count: int) -> list[Score]:
        """Return the scores of the first samples, at most `count`; what a killed run has half written is dropped."""
        if not self.path.is_file():
            return []
        scores: list[Score] = []
        for line in files.read_limited(self.path, _LARGEST).splitlines()[:count]:
            try:
                entry = json.loads(line)
                scores.append(Score(**entry | {"counts": tuple(entry["counts"])}))
            except (ValueError, TypeError, KeyError):
                break
        files.write_atomic(self.path, _lines(scores))
        return scores

    def append(self, scores: Sequence[Score]) -> None:
        with self.path.open("ab") as stream:
            stream.write(_lines(scores))

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def _lines(scores: Sequence[Score]) -> bytes:
    return "".join(json.dumps(asdict(score)) + "\n" for score in scores).encode()
