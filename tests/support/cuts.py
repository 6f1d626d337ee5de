"""The table of a campaign: what was interrupted and how, and which release the device ran after that.

The tests of a process fill it, and pytest prints it at the end; with `--cuts-json FILE` it is a file, too.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass

SEED = os.environ.get("TOOLCHAIN_CUTS_SEED", "1")
"""Decides where and when the power fails, so that a failure comes again."""


@dataclass
class Row:
    """The cases of one kind.

    Attributes:
        work: What was interrupted.
        fault: How.
        cases: How many there were.
        failed: How many of them failed.
        cuts: How often the power was cut.
        old: After how many interruptions the device ran the release that it had before.
        new: After how many of them it ran the release that the work brings, or, for a removal, none.
    """

    work: str
    fault: str
    cases: int = 0
    failed: int = 0
    cuts: int = 0
    old: int = 0
    new: int = 0

    def ran(self, *, new: bool) -> None:
        """Count what the device ran."""
        if new:
            self.new += 1
        else:
            self.old += 1


_rows: dict[tuple[str, str], Row] = {}


def stream(name: str) -> random.Random:
    """Return random numbers that follow from the seed and a name."""
    return random.Random(f"{SEED} {name}")  # noqa: S311 - seeded, so that a failure comes again


@contextlib.contextmanager
def case(work: str, fault: str) -> Iterator[Row]:
    """Count a case; what happens in it is counted in the row. One that a user interrupts has not failed."""
    row = _rows.setdefault((work, fault), Row(work, fault))
    row.cases += 1
    try:
        yield row
    except KeyboardInterrupt:
        row.cases -= 1
        raise
    except BaseException:
        row.failed += 1
        raise


def lines() -> list[str]:
    """Return the table as lines for people; none if nothing was cut."""
    if not any(row.cuts for row in _rows.values()):
        return []
    head = ("work", "fault", "cases", "failed", "cuts", "old", "new")
    rows = [tuple(map(str, asdict(row).values())) for row in _rows.values()]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    texts = [
        "  ".join(
            cell.ljust(width) if number < 2 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, *rows)
    ]
    return [*texts, f"{_total('cuts')} power cuts, {_total('failed')} failures, seed {SEED}"]


def document() -> dict[str, object]:
    """Return the same as JSON."""
    return {
        "seed": SEED,
        "cuts": _total("cuts"),
        "failed": _total("failed"),
        "rows": [asdict(row) for row in _rows.values()],
    }


def _total(name: str) -> int:
    return sum(getattr(row, name) for row in _rows.values())
