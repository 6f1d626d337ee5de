"""What Mesa's compiler said of the kernels of the zoo in a campaign, by the digest of each one's source without names.

A test that finds a kernel here need not compile it. Kernels that have changed since are not here: a campaign
(TOOLCHAIN_MALI_ZOO=1, in one process) adds them; what no kernel is any more does no harm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from toolchain import files
from toolchain.backends.mali.cost import Compiler

PLACE = Path(__file__).parent.parent / "data" / "mali" / "judged.json"

_NAME = re.compile(r"\b[A-Za-z]\w*_(kernel|ptr)\b")


def nameless(source: str) -> str:
    """Return a kernel with numbers for the names of itself and of what it reads and writes.

    Those say where in a network it stands, and nothing of what it does: networks share kernels then, and one more layer
    in front of others leaves theirs as they are.
    """
    known: dict[str, str] = {}
    return _NAME.sub(lambda one: known.setdefault(one[0], f"n{len(known)}_{one[1]}"), source)


def digest(source: str) -> str:
    """Return what a kernel is called in the file."""
    return files.sha256_bytes(source.encode())[:16]


def _compiler(asked: Compiler) -> str:
    """Return what the rows hold for, and for no other: GPU, packages, program and options."""
    return files.sha256_bytes(json.dumps([asked.gpu.name, asked.root.key, *asked.words]).encode())[:16]


def spills(asked: Compiler, place: Path = PLACE) -> Mapping[str, int]:
    """Return how many values each kernel spills that a campaign compiled by this compiler, by its digest."""
    table: dict[str, dict[str, int]] = json.loads(place.read_text(encoding="utf-8"))
    return table.get(_compiler(asked), {})


def record(asked: Compiler, found: Iterable[tuple[str, int]], place: Path = PLACE) -> None:
    """Add kernels, each its source and its spills, to what the file has of this compiler."""
    table = json.loads(place.read_text(encoding="utf-8"))
    rows = {**table.get(_compiler(asked), {}), **{digest(source): count for source, count in found}}
    table[_compiler(asked)] = dict(sorted(rows.items()))
    files.write_atomic(place, (json.dumps(table, indent=0, sort_keys=True) + "\n").encode())
