"""What Mesa's compiler said of the kernels of the zoo in a campaign, by the digest of each one's source without names.

A test that finds a kernel here need not compile it. Kernels that have changed since are not here: a campaign
(`make mali-zoo`) compiles those and adds them as it goes. In the end it runs

    python -m tests.support.mali_judged

which removes what no kernel of the zoo is any more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from toolchain import board, files
from toolchain.backends.mali import cost
from toolchain.backends.mali.cost import Compiler, network
from toolchain.compile.compiler import schedule
from toolchain.compile.request import BuildRequest
from toolchain.models import zoo
from toolchain.models.inputs import Source
from toolchain.models.request import Model

PLACE = Path(__file__).parent.parent / "data" / "mali" / "judged.json"
BOARDS = {"g610": "rk3588", "g52": "odroid-n2"}
"""A board with each GPU that the file has rows of."""

_NAME = re.compile(r"\b[A-Za-z]\w*_(kernel|ptr)\b")


def sources_of(name: str, board_name: str) -> list[str]:
    """Return the kernels of a network of the zoo as they are without tuning, nameless, the longest first."""
    request = BuildRequest(Model(name, {}, Source()), board.load(board_name).resolved(), tuned=False)
    launches = network.launches(schedule(request), request.backend.target)
    return sorted({nameless(launch.kernel.source) for launch in launches}, key=lambda text: (-len(text), text))


def nameless(source: str) -> str:
    """Return a kernel with numbers for the names of itself and of what it reads and writes.

    Those say where in a network it stands, and nothing of what it does: networks share kernels then, and one more layer
    in front of others leaves theirs as they are.
    """
    names: dict[str, str] = {}
    return _NAME.sub(lambda match: names.setdefault(match[0], f"n{len(names)}_{match[1]}"), source)


def digest(source: str) -> str:
    """Return what a kernel is called in the file."""
    return files.sha256_bytes(source.encode())[:16]


def _compiler(judge: Compiler) -> str:
    """Return what the rows hold for, and for no other: GPU, packages, program and options."""
    return files.sha256_bytes(json.dumps([judge.gpu.name, judge.root.key, *judge.words]).encode())[:16]


def spills(judge: Compiler, path: Path = PLACE) -> Mapping[str, int]:
    """Return how many values each kernel spills that a campaign compiled by this compiler, by its digest."""
    table: dict[str, dict[str, int]] = json.loads(path.read_text(encoding="utf-8"))
    return table.get(_compiler(judge), {})


def record(judge: Compiler, results: Iterable[tuple[str, int]], path: Path = PLACE) -> None:
    """Add kernels, each its source and its spills, to what the file has of this compiler."""
    _write(judge, {**spills(judge, path), **{digest(source): count for source, count in results}}, path)


def keep(judge: Compiler, sources: Iterable[str], path: Path = PLACE) -> None:
    """Remove the rows of this compiler that are of none of these kernels."""
    digests = {digest(source) for source in sources}
    _write(judge, {key: count for key, count in spills(judge, path).items() if key in digests}, path)


def _write(judge: Compiler, rows: Mapping[str, int], path: Path) -> None:
    table = json.loads(path.read_text(encoding="utf-8"))
    table[_compiler(judge)] = dict(sorted(rows.items()))
    files.write_atomic(path, (json.dumps(table, indent=0, sort_keys=True) + "\n").encode())


def main() -> None:
    """Remove the rows of kernels that no network of the zoo has any more."""
    for gpu, board_name in BOARDS.items():
        judge = Compiler(cost.root(print), cost.gpu(gpu))
        keep(judge, [text for name in zoo.NAMES for text in sources_of(name, board_name)])


if __name__ == "__main__":
    main()
