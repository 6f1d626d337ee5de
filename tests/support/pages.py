"""Pages as commands write them, of reports that are made up; tests/integration/test_pages.py looks at each.

A new kind of page is a line in `PAGES`.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolchain import page
from toolchain.tuning import report as tuning
from toolchain.tuning.report import BoardRow, Point, TaskRow, TuneReport

LONG = "fused_conv2d_add_relu_" * 5
FOREIGN = "<script>alert(1)</script>\x1b[31m\u202e& \"so\" 'on' \u7db2\u8def"


@dataclass(frozen=True)
class Made:
    """A page, and what it is a page of.

    Attributes:
        html: The page.
        document: The report as JSON has it.
        unseen: Names of the numbers in it that are not shown, with wildcards; lists are named without brackets.
    """

    html: str
    document: Any = field(default_factory=dict)
    unseen: Sequence[str] = ()


# --- the kit -----------------------------------------------------------------------------------------------------


def _kit(values: Sequence[float]) -> Made:
    """Every kind of part, with the same values."""
    dots = [page.Dot(place, value, 0.9 * value, 1.2 * value, FOREIGN, place % 2) for place, value in enumerate(values[:300])]
    bars = [page.Bar(f"{LONG}{place}", value, f"{value:.3g} ms") for place, value in enumerate(values[:30])]
    levels = [page.Level("least, 1.01", 1.01), page.Level("worst, 1.05", 1.05), page.Level("", 1.0)]
    sides = values[: len(values) // 2], values[len(values) // 2 :]
    ends = {"low": -1.0, "high": 1.5}
    cells = [(f"{LONG}{place}", page.Cell(f"{value:.2%}", value), FOREIGN) for place, value in enumerate(values[:5])]
    plots = [
        page.Steps("Steps", "minutes", "ms", [page.Step(*pair) for pair in enumerate(values[:300])], 5.0, levels),
        page.Dots("Dots", "round", "ratio", dots, levels, ["test", "confirmation"]),
        page.Series("Series", "run", "ms", [page.Run("base", sides[0]), page.Run("new", sides[1])], levels[:1]),
        page.Histogram("Histogram", "ms", [page.Group("base", sides[0]), page.Group(LONG * 2, sides[1])]),
        page.Bars("Bars", "ms", bars),
        page.Bars("Differences", "ms", [dataclasses.replace(one, value=1 - one.value, **ends) for one in bars]),
    ]  # fmt: skip
    sections = [
        page.Section("Texts", [page.Text(FOREIGN, "bad"), page.Notes([FOREIGN, LONG]), page.Facts([(LONG, FOREIGN)])]),
        page.Section("Nothing", [page.Notes([]), page.Facts([("none", "")])]),
        page.Section("Table", [page.Table(("Name", "Share", "Said"), cells, [1])]),
        page.Section("Plots", plots),
    ]
    marks = [page.EMULATED, page.MODELLED, page.INCONCLUSIVE, page.Mark("passed", "good"), page.Mark(FOREIGN, "bad")]
    return Made(
        page.Page(f"{LONG} {FOREIGN}", "kit", page.Verdict(f"{LONG}\n{FOREIGN}", "bad"), sections, marks).html()
    )


def spread(number: int, seed: int = 1) -> list[float]:
    """Draw numbers around one, some far beyond the others."""
    stream = random.Random(seed)  # noqa: S311 - nothing secret
    return [math.exp(stream.gauss(0, 0.02)) * (8 if stream.random() < 0.01 else 1) for _ in range(number)]


# --- tuning ------------------------------------------------------------------------------------------------------

TASKS = (
    TaskRow(0, "fused_conv2d_add_relu", "conv2d_nchw", "1x3x8x8 -> 1x4x8x8", 1, 0.0426, 64, 3, 0.00123, done=False),
    TaskRow(1, "fused_" + "matmul_" * 6, "matmul", "8x8, 8x8 -> 8x8", 2, 0.0063, 32, 30, 0.00016, done=True),
    TaskRow(7, "softmax<&>", "softmax", "1x10 -> 1x10", 1, 4e-6, 4, 0, 0.0000021, done=False),
)
POINTS = (Point(30.0, 16, 0.0093), Point(90.0, 48, 0.0042), Point(240.0, 80, 0.0015521))


def tune_report(**values: Any) -> TuneReport:
    """Return a report of a tuning run."""
    wanted = {
        "model": "squeezenet", "board": "rpi4", "emulated": True,
        "target": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+fp16", "+aes"]},
        "tuner": "evolutionary-xgb", "seed": 3, "options": {"number": 3, "timeout_s": 10.0},
        "trials": 100, "resumed": 16, "causes": {"ok": 67, "timeout": 32, "build": 1, "crash": 0},
        "seconds": 600.0, "shares": {"search": 200.0, "build": 100.0, "run": 270.0}, "tasks": TASKS,
        "points": POINTS, "boards": (BoardRow("rpi4-1", 60, 20, 1), BoardRow("rpi4-2", 40, 13, 0)),
    }  # fmt: skip
    return TuneReport(**{**wanted, **values})


def _tune(**values: Any) -> Made:
    found = tune_report(**values)
    # Of the points, the plot shows where they are; a task's own work is in its GFLOPS.
    return Made(tuning.html(found), found.document(), ("schema_version", "points.*", "tasks.gflop"))


def _many_tasks() -> Made:
    rows = [
        dataclasses.replace(TASKS[0], id=one, name=LONG, untuned_s=0.1234, best_s=0.001 * 1.05**-one)
        for one in range(40)
    ]
    return _tune(tasks=tuple(rows), emulated=False, model=FOREIGN)


PAGES: dict[str, Callable[[], Made]] = {
    "kit": lambda: _kit(spread(300)),
    "kit-none": lambda: _kit([]),
    "kit-one": lambda: _kit([1.234]),
    "kit-same": lambda: _kit([1.0] * 20),
    "kit-many": lambda: _kit(spread(12_000)),
    "kit-wild": lambda: _kit([1e-9, 1e9, 0.0, 5.0, -3.0, math.inf, math.nan, 1e300] * 3),
    "tune": _tune,
    "tune-untuned": lambda: _tune(tasks=tuple(dataclasses.replace(one, untuned_s=2.5 * one.best_s) for one in TASKS)),
    "tune-many": _many_tasks,
    "tune-nothing": lambda: _tune(tasks=(dataclasses.replace(TASKS[0], best_s=None),), points=(), boards=()),
}
